package bus_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"flexiq/pkg/bus"
	"flexiq/pkg/store"
	"flexiq/pkg/testkit"
)

func TestReady(t *testing.T) {
	s := testkit.NATS(t)
	from, to := dial(t, bus.Options{InProcess: s}), dial(t, bus.Options{URL: s.ClientURL()})
	heard := make(chan []string, 8)
	stop, err := to.OnReady(func(namespaces []string) { heard <- namespaces })
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"default", "a.b", "*", "é ü", "comma,comma"}
	from.PublishReady(names)
	if got := wait(t, "the hint arrives", heard); !slices.Equal(got, names) {
		t.Errorf("got %q", got)
	}
	from.PublishReady(nil)
	many := make([]string, 3000)
	for i := range many {
		many[i] = fmt.Sprintf("%s%d", strings.Repeat("n", 90), i)
	}
	from.PublishReady(many)
	var got []string
	messages := 0
	for ; len(got) < len(many); messages++ {
		got = append(got, wait(t, "the hints arrive", heard)...)
	}
	if !slices.Equal(got, many) || messages != 5 {
		t.Errorf("%d names arrived in %d messages", len(got), messages)
	}
	stop()
	from.PublishReady(names)
	if err := to.Raw().Flush(); err != nil {
		t.Fatal(err)
	}
	if len(heard) > 0 {
		t.Error("heard after stop")
	}
	_, err = to.OnFreed(func(namespaces []string) { heard <- namespaces })
	if err != nil {
		t.Fatal(err)
	}
	from.PublishReady(names)
	from.PublishFreed([]string{"a slot"})
	if got := wait(t, "the hint arrives", heard); !slices.Equal(got, []string{"a slot"}) {
		t.Errorf("got %q", got)
	}
	_, err = to.OnLeft(func(ns, worker string) { heard <- []string{ns, worker} })
	if err != nil {
		t.Fatal(err)
	}
	from.PublishLeft("a space", "a worker")
	if got := wait(t, "the hint arrives", heard); !slices.Equal(got, []string{"a space", "a worker"}) {
		t.Errorf("got %q", got)
	}
}

type change struct {
	kind     store.Kind
	key      string
	revision int64
}

func TestConfig(t *testing.T) {
	s := testkit.NATS(t)
	from, to := dial(t, bus.Options{InProcess: s}), dial(t, bus.Options{URL: s.ClientURL()})
	heard := make(chan change, 8)
	listen := func(kind store.Kind, key string, revision int64) { heard <- change{kind, key, revision} }
	stop, err := to.OnConfig(listen)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, want := range []change{
		{store.KindQuota, "default", 7}, {store.KindQuota, "A.b *>", 9223372036854775807}, {store.KindDefaultQuota, "", 3},
		{store.KindToken, "abcdefghijklmnop", 0},
	} {
		from.PublishConfig(want.kind, want.key, want.revision)
		if got := wait(t, "the hint arrives", heard); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	// Whatever else arrives is no reason to fall over.
	for _, subject := range []string{"fqi.v1.config.quota.A", "fqi.v1.config.quota.=zz", "fqi.v1.config.quota"} {
		if err := from.Raw().Publish(subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := from.Raw().Publish("fqi.v1.config.quota.lark", []byte("seven")); err != nil {
		t.Fatal(err)
	}
	if got, want := wait(t, "the hint arrives", heard), (change{store.KindQuota, "lark", 0}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestReports(t *testing.T) {
	s := testkit.NATS(t)
	from, to := dial(t, bus.Options{InProcess: s}), dial(t, bus.Options{URL: s.ClientURL()})
	stats, dispatch, progress := make(chan string, 1), make(chan string, 1), make(chan string, 1)
	stop, err := to.OnStats(func(report []byte) { stats <- string(report) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	stop, err = to.OnDispatch(func(report []byte) { dispatch <- string(report) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	stop, err = to.OnProgress(func(report []byte) { progress <- string(report) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	from.PublishStats([]byte("{1}"))
	from.PublishDispatch([]byte("{3}"))
	from.PublishProgress([]byte("{2}"))
	if got := wait(t, "the report arrives", dispatch); got != "{3}" {
		t.Errorf("got %s", got)
	}
	if got := wait(t, "the report arrives", stats); got != "{1}" {
		t.Errorf("got %s", got)
	}
	if got := wait(t, "the report arrives", progress); got != "{2}" {
		t.Errorf("got %s", got)
	}
}
