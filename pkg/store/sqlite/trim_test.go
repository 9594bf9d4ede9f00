package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"flexiq/pkg/store"
)

// TestTrimmedSpaceIsUsedAgain fills and trims in cycles, with payloads in and
// beside the rows.
func TestTrimmedSpaceIsUsedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, Options{})
	ctx := t.Context()
	term, err := s.NewTerm(ctx, "test")
	if err != nil {
		t.Fatal(err)
	}
	var first int64
	for cycle := range 5 {
		group := calls(t, "ns", 40, 1)
		for i := range group {
			group[i].Jobs[0].Payload = make([]byte, i*200)
		}
		if _, err := s.Admit(ctx, group); err != nil {
			t.Fatal(err)
		}
		if c, err := s.Cancel(ctx, "ns", store.Selection{}, 100); err != nil || c.Cancelled != 40 || c.More {
			t.Fatal(c, err)
		}
		for more := true; more; {
			got, err := s.Trim(ctx, store.Trim{Term: term, Namespace: "ns", Table: store.Archive, Keep: new(int64), Limit: 15})
			if err != nil || got.Cancelled == 0 {
				t.Fatal(got, err)
			}
			more = got.More
		}
		pages := ask(t, path, "PRAGMA page_count")
		if cycle == 0 {
			first = pages
		} else if pages*10 > first*11 {
			t.Fatalf("%d pages after the first cycle, %d after %d", first, pages, cycle+1)
		}
		if n := ask(t, path, "SELECT (SELECT count(*) FROM archive) + (SELECT count(*) FROM payloads) + (SELECT count(*) FROM lanes)"); n != 0 {
			t.Fatalf("%d rows are left of trimmed jobs", n)
		}
	}
	consistent(t, path)
}

// TestTrimOfAnUnknownTerm: a term that this store never gave is no better than
// an old one. It comes from a store that was replaced by an older copy.
func TestTrimOfAnUnknownTerm(t *testing.T) {
	s := open(t, Options{})
	for _, term := range []int64{1, 7} {
		got, err := s.Trim(t.Context(), store.Trim{Term: term, Namespace: "ns", Table: store.Archive, Before: time.Now(), Limit: 1})
		if err != nil || !got.Superseded {
			t.Errorf("term %d: %+v, %v", term, got, err)
		}
	}
}
