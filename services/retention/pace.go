package retention

import "time"

// The times by which a delete is slow, or fast enough for a larger one.
const (
	slow      = 250 * time.Millisecond
	fast      = slow / 5
	leastRows = 25
)

// pace is how many rows a delete takes: fewer while the store is slow, so that
// one delete holds its locks no longer, and again as many as may be once it is
// fast.
type pace struct{ rows, most int }

func newPace(most int) *pace { return &pace{rows: most, most: most} }

// took notes how long a delete of that many rows took, and whether it failed.
func (p *pace) took(d time.Duration, failed bool) {
	switch {
	case failed || d >= slow:
		p.rows = max(min(leastRows, p.most), p.rows/2)
	case d <= fast:
		p.rows = min(p.most, p.rows*2)
	}
}
