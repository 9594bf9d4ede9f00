package dispatchgate

import (
	"container/heap"
	"time"
)

// appointment is a time that a room has to keep, of a waiter or of a line.
type appointment struct {
	at     time.Time
	pos    int // in the agenda, from 1; 0: not in it
	waiter *waiter
	line   *line
}

// agenda holds appointments, the earliest first.
type agenda struct{ items []*appointment }

func (a *agenda) set(p *appointment, at time.Time) {
	p.at = at
	if p.pos > 0 {
		heap.Fix(a, p.pos-1)
		return
	}
	heap.Push(a, p)
}

func (a *agenda) drop(p *appointment) {
	if p.pos > 0 {
		heap.Remove(a, p.pos-1)
	}
}

// pop takes the first appointment that is due at now, nil when none is.
func (a *agenda) pop(now time.Time) *appointment {
	if len(a.items) == 0 || a.items[0].at.After(now) {
		return nil
	}
	return heap.Pop(a).(*appointment)
}

func (a *agenda) first() time.Time {
	if len(a.items) == 0 {
		return time.Time{}
	}
	return a.items[0].at
}

// Len, Less, Swap, Push and Pop are for package heap.
func (a *agenda) Len() int           { return len(a.items) }
func (a *agenda) Less(i, j int) bool { return a.items[i].at.Before(a.items[j].at) }

func (a *agenda) Swap(i, j int) {
	a.items[i], a.items[j] = a.items[j], a.items[i]
	a.items[i].pos, a.items[j].pos = i+1, j+1
}

func (a *agenda) Push(x any) {
	p := x.(*appointment)
	a.items = append(a.items, p)
	p.pos = len(a.items)
}

func (a *agenda) Pop() any {
	last := len(a.items) - 1
	p := a.items[last]
	a.items[last] = nil
	a.items = a.items[:last]
	p.pos = 0
	return p
}
