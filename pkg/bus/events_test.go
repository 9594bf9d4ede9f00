package bus_test

import (
	"testing"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
	"flexiq/pkg/events"
	"flexiq/pkg/testkit"
)

// An event that nobody hears is not sent again for a moment, and one who begins
// to listen is heard of at once by those who publish.
func TestNobodyHearsAndThenSomebody(t *testing.T) {
	r := newRig(t)
	publisher := r.conn
	listener := dial(t, bus.Options{URL: r.server.ClientURL(), User: serviceUser, Password: servicePassword})
	const subject = "fqe.v1.lark.job.dead"
	if !publisher.EventHeard(subject) {
		t.Error("before anything is known an event is not sent")
	}
	testkit.Eventually(t, "the server tells that nobody hears", func() bool {
		if err := publisher.PublishEvent(subject, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		return !publisher.EventHeard(subject)
	})
	if !publisher.EventHeard("fqe.v1.lark.job.shed") || !publisher.EventHeard("fqe.v1.wren.job.dead") {
		t.Error("other subjects are taken for deaf, too")
	}
	if err := publisher.Raw().Flush(); err != nil { // nothing of it is on its way any more
		t.Fatal(err)
	}
	filter, err := events.NewFilter(&flexiqv1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	heard, err := listener.ListenEvents("lark", filter)
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Stop()
	testkit.Eventually(t, "the subject is heard again", func() bool { return publisher.EventHeard(subject) })
	if err := publisher.PublishEvent(subject, []byte(`{"type":"job.dead"}`)); err != nil {
		t.Fatal(err)
	}
	msg := <-heard.C
	if msg.Subject != subject || string(msg.Data) != `{"type":"job.dead"}` {
		t.Errorf("heard %s %s", msg.Subject, msg.Data)
	}
	for range 3 { // one that is heard stays so
		if err := publisher.PublishEvent(subject, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := publisher.Raw().Flush(); err != nil {
		t.Fatal(err)
	}
	if !publisher.EventHeard(subject) || heard.Late() {
		t.Error("a subject with a listener is taken for deaf")
	}
}

// One who does not take what comes is late, whatever it listens to.
func TestALateListenerIsKnown(t *testing.T) {
	c := newRig(t).conn
	filter, err := events.NewFilter(&flexiqv1.WatchEventsRequest{Types: []string{"quota", "job.dead"}})
	if err != nil {
		t.Fatal(err)
	}
	heard, err := c.ListenEvents("lark", filter)
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Stop()
	for range events.Room + 100 {
		if err := c.PublishEvent(auth.EventPrefix+"lark.job.dead", []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "it is late", heard.Late)
}
