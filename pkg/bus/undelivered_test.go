package bus

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"
)

func (d *deadLetters) remembered() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.young) + len(d.old)
}

func noResponse(subject string) *nats.Msg {
	return &nats.Msg{Subject: subject, Header: nats.Header{"Status": {"503"}}}
}

func newDead() *deadLetters {
	return &deadLetters{inbox: "_INBOX.=s.x.", pool: newPool(1, zerolog.Nop()), young: make(map[string]func())}
}

func TestExpectationsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDead()
		told := 0
		first := d.expect(func() { told++ })
		time.Sleep(noticeAfter - 1)
		second := d.expect(func() { told++ })
		time.Sleep(noticeAfter)
		d.receive(&nats.Msg{Subject: second, Data: []byte("not the server")})
		d.receive(noResponse(second)) // old enough for the first, not for this one
		d.receive(noResponse(second))
		d.receive(noResponse("_INBOX.=s.x.nonsense"))
		time.Sleep(2 * noticeAfter)
		d.receive(noResponse(first))
		synctest.Wait()
		if told != 1 {
			t.Errorf("told %d times, want once", told)
		}
		if n := d.remembered(); n != 0 || d.timer != nil {
			t.Errorf("%d replies are remembered, timer %v", n, d.timer)
		}
	})
}

func TestExpectationsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDead()
		for range maxRemembered {
			if !strings.HasPrefix(d.expect(func() {}), d.inbox) {
				t.Fatal("not expected")
			}
		}
		if subject := d.expect(func() {}); subject != "" {
			t.Errorf("one more is expected at %s", subject)
		}
		time.Sleep(3 * noticeAfter)
		if n := d.remembered(); n != 0 {
			t.Errorf("%d replies are remembered", n)
		}
	})
}

func TestForgottenExpectation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDead()
		subject := d.expect(func() { t.Error("told of what was taken back") })
		d.forget(subject)
		d.forget("")
		d.receive(noResponse(subject))
		time.Sleep(3 * noticeAfter)
	})
}

func TestPoolKeepsOrderAndEnds(t *testing.T) {
	p := newPool(1, zerolog.Nop())
	var got []int
	for i := range 100 {
		p.submit(func() {
			if got = append(got, i); i == 50 {
				panic("a task's")
			}
		})
	}
	p.close()
	for i, n := range got {
		if i != n {
			t.Fatalf("order %v", got)
		}
	}
	if len(got) != 100 {
		t.Errorf("%d tasks ran", len(got))
	}
}

func TestOwnReply(t *testing.T) {
	subject := rapid.StringMatching(`(_INBOX|lark|id|idx|[.*>]| ){0,9}`)
	token := rapid.SampledFrom([]string{"lark", "id", "=2a", "="})
	rapid.Check(t, func(t *rapid.T) {
		ns, id := token.Draw(t, "namespace"), token.Draw(t, "id")
		prefix := "_INBOX." + ns + "." + id + "."
		reply := subject.Draw(t, "reply")
		if rapid.Bool().Draw(t, "below") {
			reply = prefix + reply
		}
		rest, own := strings.CutPrefix(reply, prefix)
		want := own && rest != "" && !strings.ContainsAny(rest, "*> ")
		if got := ownReply(reply, ns, id); got != want {
			t.Errorf("ownReply(%q, %q, %q) = %v", reply, ns, id, got)
		}
	})
}

func TestParseViolation(t *testing.T) {
	tests := []struct{ text, action, subject string }{
		{`nats: permissions violation: Permissions Violation for Publish to "fq.v1.enqueue.A.b"`, "publish", "fq.v1.enqueue.A.b"},
		{`Permissions Violation for Subscription to "_INBOX.x.*"`, "subscription", "_INBOX.x.*"},
		{`Permissions Violation for Publish with Reply of "x"`, "", ""},
		{`slow consumer`, "", ""},
	}
	for _, tt := range tests {
		if action, subject := parseViolation(tt.text); action != tt.action || subject != tt.subject {
			t.Errorf("%s: %q %q", tt.text, action, subject)
		}
	}
}
