package storetest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

var payloadCases = []testcase{
	{"any bytes come back", payloadBytes},
	{"empty and none differ", payloadNone},
	{"the largest", payloadLargest},
	{"of each size in one batch", payloadSizes},
	{"results of any bytes", payloadResults},
}

func payload(form job.Form, p []byte) func(*job.Spec) {
	return func(s *job.Spec) { s.Payload, s.Form = p, form }
}

// odd are payloads that a text column, a JSON column or a C string would spoil.
var odd = map[string][]byte{
	"NUL":              []byte("a\x00b"),
	"only NUL":         {0},
	"invalid UTF-8":    []byte("\xff\xfe\x80"),
	"lone surrogate":   []byte(`"\ud800"`),
	"surrogate bytes":  []byte("\xed\xa0\x80"),
	"deep JSON":        []byte(strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)),
	"every byte":       everyByte(),
	"a hexadecimal":    []byte(`\x6162`),
	"a large number":   []byte(`9007199254740993`),
	"white space":      []byte(" \n\t "),
	"a repeated key":   []byte(`{"a":1,"a":2}`),
	"a percent escape": []byte("%00%s%d"),
}

func everyByte() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// payloadBytes: each runs to its end and is read back as it was, on
// every way that it goes.
func payloadBytes(f *fixture) {
	const ns = "ns"
	for name, p := range odd {
		for form, o := range map[job.Form]job.Outcome{job.Bytes: job.Completed, job.Args: job.GivenUp} {
			spec := f.spec(payload(form, p))
			f.enqueue(ns, spec)
			check := func(where string, j job.Job) {
				f.Helper()
				if !bytes.Equal(j.Payload, p) || j.Form != form {
					f.Errorf("%s, %s: %.40q of form %d, want %.40q of form %d", name, where, j.Payload, j.Form, p, form)
				}
			}
			check("pending", *f.job(ns, spec.ID))
			f.clock.Advance(time.Second)
			l := f.take(ns)
			check("claimed", l.Job)
			f.settleOne(ending(l, job.Failed, retryAfter(0)))
			l = f.take(ns)
			check("claimed again", l.Job)
			f.settle(o, l)
			check("ended", *f.job(ns, spec.ID))
		}
	}
	n := int64(len(odd))
	f.holds(ns, counts{Archived: n, Dead: n})
	for _, j := range f.list(ns, store.Filter{}, 10) {
		if j.Payload != nil {
			f.Errorf("a listing has a payload of %d bytes", len(j.Payload))
		}
	}
}

func payloadNone(f *fixture) {
	const ns = "ns"
	none, empty := f.spec(payload(job.NoPayload, nil)), f.spec(payload(job.Bytes, []byte{}))
	f.enqueue(ns, none, empty)
	f.clock.Advance(time.Second)
	claims := f.claim(ns, 2)
	for i, want := range []job.Form{job.NoPayload, job.Bytes} {
		equal(f, "claimed", [2]int{int(claims[i].Job.Form), len(claims[i].Job.Payload)}, [2]int{int(want), 0})
	}
	f.settle(job.Completed, claims...)
	equal(f, "archived without", f.job(ns, none.ID).Form, job.NoPayload)
	equal(f, "archived empty", f.job(ns, empty.ID).Form, job.Bytes)
}

func payloadLargest(f *fixture) {
	const ns = "ns"
	p := bytes.Repeat([]byte{0, 0xff, 'x', '\n'}, job.LargestMaxPayload/4)
	spec := f.spec(payload(job.Bytes, p))
	f.enqueue(ns, spec)
	f.clock.Advance(time.Second)
	l := f.take(ns, func(w *store.Want) { w.MaxBytes = 1000 })
	if !bytes.Equal(l.Job.Payload, p) {
		f.Errorf("claimed: %d bytes, want the %d that were given", len(l.Job.Payload), len(p))
	}
	f.settle(job.GivenUp, l)
	if got := f.job(ns, spec.ID).Payload; !bytes.Equal(got, p) {
		f.Errorf("dead: %d bytes, want the %d that were given", len(got), len(p))
	}
	f.put(ns, `{"max_pending":0,"on_excess":"drop"}`)
	spec = f.spec(payload(job.Bytes, p))
	f.try(ns, spec)
	if got := f.job(ns, spec.ID).Payload; !bytes.Equal(got, p) {
		f.Errorf("shed: %d bytes, want the %d that were given", len(got), len(p))
	}
}

// payloadSizes crosses every size at which a store might keep payloads elsewhere.
func payloadSizes(f *fixture) {
	const ns = "ns"
	var specs []job.Spec
	for _, n := range []int{0, 1, 127, 128, 255, 256, 1023, 1024, 2047, 2048, 2049, 4096, 8191, 8192, 65535, 65536, 262144} {
		specs = append(specs, f.spec(payload(job.Bytes, bytes.Repeat([]byte{byte(n)}, n))))
	}
	f.enqueue(ns, specs...)
	f.clock.Advance(time.Second)
	for i, l := range f.claim(ns, len(specs)) {
		if !bytes.Equal(l.Job.Payload, specs[i].Payload) {
			f.Errorf("a payload of %d bytes came back with %d", len(specs[i].Payload), len(l.Job.Payload))
		}
		f.settle([]job.Outcome{job.Completed, job.GivenUp}[i%2], l)
	}
	term := f.term()
	equal(f, "archive", f.keep(term, ns, store.Archive, 0), store.Trimmed{Completed: 9})
	equal(f, "dead letters", f.keep(term, ns, store.DeadLetters, 0), store.Trimmed{Dead: 8})
}

func payloadResults(f *fixture) {
	const ns = "ns"
	for name, r := range odd {
		f.enqueue(ns, f.spec())
		f.clock.Advance(time.Second)
		l := f.take(ns)
		f.settleOne(ending(l, job.Completed, func(s *store.Settlement) { s.Result = r }))
		if got := f.job(ns, l.Job.ID).Result; !bytes.Equal(got, r) {
			f.Errorf("%s: %.40q, want %.40q", name, got, r)
		}
	}
	f.enqueue(ns, f.spec())
	f.clock.Advance(time.Second)
	l := f.take(ns)
	f.settle(job.Completed, l)
	equal(f, "no result", fmt.Sprintf("%q", f.job(ns, l.Job.ID).Result), `""`)
}
