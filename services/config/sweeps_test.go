package config

import (
	"fmt"
	"testing"

	"flexiq/pkg/auth"
)

func TestUsageTellsOfTheLastSweep(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	reader := f.token("silo", auth.Inspect)
	last := func() any { return f.ok(reader, "GetUsage", `{}`)["last_sweep"] }
	if got := last(); got != nil {
		t.Errorf("before any sweep: %v", got)
	}
	hear := func(term, at int, namespaces string) {
		f.svc.hearSweep(fmt.Appendf(nil, `{"term":%d,"at":%d,"namespaces":{%s}}`, term, at, namespaces))
	}
	answer := func(at, completed, shed int, left bool, skipped string) string {
		return fmt.Sprintf(`{"time":"1970-01-01T00:00:0%dZ","completed":"%d","cancelled":"0","dead":"0","shed":"%d","retried":"0","blocked":"0","left":%t,"skipped":%q}`,
			at, completed, shed, left, skipped)
	}
	hear(2, 1e6, `"wren":{"dead":9}`)
	hear(2, 1e6, `"silo":{"completed":3,"shed":4,"left":true}`) // a second part of one sweep
	f.same("a sweep", last(), answer(1, 3, 4, true, ""))
	f.svc.hearSweep([]byte("{"))
	hear(1, 9e6, `"silo":{"completed":100}`) // a late one of an older leader
	f.same("the same still", last(), answer(1, 3, 4, true, ""))
	hear(2, 2e6, `"silo":{"skipped":"failed"}`)
	f.same("the next", last(), answer(2, 0, 0, false, "failed"))
	hear(3, 3e6, ``)
	f.same("one that did nothing here", last(), answer(3, 0, 0, false, ""))
}
