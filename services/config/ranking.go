package config

import (
	"cmp"
	"encoding/json"
	"slices"

	"flexiq/pkg/fault"
)

// place is where a namespace stands among the fullest: by fullness downwards,
// then by name.
type place struct {
	Full float64 `json:"full"`
	Name string  `json:"name"`
}

func (p place) compare(q place) int {
	if c := cmp.Compare(q.Full, p.Full); c != 0 {
		return c
	}
	return cmp.Compare(p.Name, q.Name)
}

// ranked is a namespace in its place.
type ranked struct {
	place
	view view
}

// podium keeps the first size namespaces after a place, whatever the number
// that it is shown.
type podium struct {
	size  int
	after *place // nil: from the top
	best  []ranked
	more  bool // others stand behind those that are kept
}

func (p *podium) add(r ranked) {
	if p.after != nil && r.compare(*p.after) <= 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(p.best, r, func(a, b ranked) int { return a.compare(b.place) })
	if i == p.size {
		p.more = true
		return
	}
	p.best = slices.Insert(p.best, i, r)
	if len(p.best) > p.size {
		p.best, p.more = p.best[:p.size], true
	}
}

// rankCursor is where a page of the fullest namespaces starts: in the stretch
// of names after From, behind After.
type rankCursor struct {
	From  string `json:"from"`
	After *place `json:"after,omitempty"`
}

func (c rankCursor) String() string {
	text, _ := json.Marshal(c) // strings and finite numbers always marshal
	return string(text)
}

func parseRankCursor(s string) (rankCursor, error) {
	var c rankCursor
	if s == "" {
		return c, nil
	}
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return c, fault.Wrap(err, fault.InvalidRequest, "page_token: must be the next_page_token of an earlier page of this list").
			With(fault.KeyField, "page_token")
	}
	return c, nil
}
