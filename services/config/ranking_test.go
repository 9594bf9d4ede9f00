package config

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"flexiq/pkg/fault"
)

// Page after page the podium shows every namespace once, the fullest first,
// ties by name, in whatever order it is shown them.
func TestPodiumPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,4}`), 0, 40, rapid.ID).Draw(t, "names")
		var all []ranked
		for _, n := range names {
			full := rapid.SampledFrom([]float64{0, 0.25, 1, 3, math.MaxFloat64}).Draw(t, "full")
			all = append(all, ranked{place: place{Full: full, Name: n}})
		}
		size := rapid.IntRange(1, 7).Draw(t, "size")
		var got []place
		for cursor := (rankCursor{}); ; {
			p := &podium{size: size, after: cursor.After}
			for _, i := range rapid.Permutation(indices(len(all))).Draw(t, "order") {
				p.add(all[i])
			}
			if len(p.best) > size {
				t.Fatalf("a page of %d holds %d", size, len(p.best))
			}
			for _, r := range p.best {
				got = append(got, r.place)
			}
			if !p.more {
				break
			}
			var err error
			if cursor, err = parseRankCursor(rankCursor{After: &p.best[size-1].place}.String()); err != nil {
				t.Fatal(err)
			}
		}
		want := make([]place, len(all))
		for i, r := range all {
			want[i] = r.place
		}
		slices.SortFunc(want, place.compare)
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestForeignRankCursor(t *testing.T) {
	if _, err := parseRankCursor("not JSON"); !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("%v", err)
	}
}
