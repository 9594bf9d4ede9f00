package batch

import "container/heap"

// call is one submitted call.
type call[In, Out any] struct {
	in     In
	done   func(Out, error)
	of     *turn[In, Out]
	bytes  int
	weight int
}

// turn is one key: its waiting calls, oldest first, and where it stands in the
// order of turns. It exists while the key has calls waiting or being flushed.
type turn[In, Out any] struct {
	key   string
	lane  int
	calls int // waiting or being flushed
	bytes int

	waiting []call[In, Out]
	start   int64 // the weight at which the key's next call is due
	order   int64 // breaks ties: who queued first goes first
}

// queue is the waiting side of a lane. Its zero value is empty.
//
// It is start-time fair queueing. The lane's clock counts weight. A key's next
// call is due where its last one ended, or at the clock when the key was
// empty, and the call that is due first goes first. So keys with much waiting
// get equal shares by weight, a key that comes with one call waits for at most
// one call of each other, and a backlog costs only the key that has it.
type queue[In, Out any] struct {
	busy   bool    // a goroutine flushes this lane
	tails  int     // flushes that are decided and not answered
	holds  *flight // the flush that has the lane, when it is decided and there are too many tails
	turns  turns[In, Out]
	clock  int64
	orders int64
}

// push appends a call to its key's.
func (q *queue[In, Out]) push(c call[In, Out]) {
	t := c.of
	t.waiting = append(t.waiting, c)
	if len(t.waiting) == 1 {
		t.start = max(t.start, q.clock)
		t.order = q.nextOrder()
		heap.Push(&q.turns, t)
	}
}

// take removes the calls of the next flush: at most that many, as many as fit
// into room by weight, at least one if any waits. It stops at the first that does
// not fit, because letting lighter calls pass would hold a heavy one back for ever.
func (q *queue[In, Out]) take(room, most int) []call[In, Out] {
	var taken []call[In, Out]
	for len(q.turns) > 0 && (len(taken) < most || len(taken) == 0) {
		t := q.turns[0]
		weight := t.waiting[0].weight
		if weight > room && len(taken) > 0 {
			break
		}
		taken = append(taken, t.waiting[0])
		room -= weight
		q.clock = t.start
		t.start += int64(weight)
		t.waiting[0] = call[In, Out]{} // let go of what it holds
		if t.waiting = t.waiting[1:]; len(t.waiting) == 0 {
			t.waiting = nil
			heap.Pop(&q.turns)
			continue
		}
		t.order = q.nextOrder()
		heap.Fix(&q.turns, 0)
	}
	return taken
}

func (q *queue[In, Out]) nextOrder() int64 {
	q.orders++
	return q.orders
}

// turns is a heap, the key that is due first on top.
type turns[In, Out any] []*turn[In, Out]

func (h turns[In, Out]) Len() int { return len(h) }

func (h turns[In, Out]) Less(i, j int) bool {
	if h[i].start != h[j].start {
		return h[i].start < h[j].start
	}
	return h[i].order < h[j].order
}

func (h turns[In, Out]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *turns[In, Out]) Push(x any) { *h = append(*h, x.(*turn[In, Out])) }

func (h *turns[In, Out]) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}
