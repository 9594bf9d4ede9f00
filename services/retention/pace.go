package retention

import "time"

// How many rows one delete takes, by how long the last one took. A delete holds up
// whoever writes at the same time, on SQLite everybody, so it is to be over before
// anybody notices: within brief. But deletes of few rows, of which a namespace gets
// twenty in a sweep, must keep up with what arrives.
const (
	brief     = 2 * time.Millisecond   // longer ones are made smaller, to easyRows
	slow      = 250 * time.Millisecond // longer ones are made smaller still, to leastRows
	easyRows  = 80
	leastRows = 25

	// mostRest bounds the rest after a delete, which otherwise is as long as the
	// delete was, so that deletes have at most half of the time.
	mostRest = 50 * time.Millisecond
)

// pace is how many rows a delete takes.
type pace struct{ rows, most int }

func newPace(most int) *pace { return &pace{rows: min(easyRows, most), most: most} }

// took notes how long a delete of that many rows took, and whether it failed. It
// returns how long to rest before the next.
func (p *pace) took(d time.Duration, failed bool) (rest time.Duration) {
	switch {
	case failed || d >= slow:
		p.rows = max(min(leastRows, p.most), p.rows/2)
	case d > brief:
		p.rows = max(min(easyRows, p.most), p.rows/2)
	case d <= brief/2:
		p.rows = min(p.most, p.rows*2)
	}
	return min(d, mostRest)
}
