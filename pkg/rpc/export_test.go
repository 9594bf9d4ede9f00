package rpc

// Calls is the number of calls in flight.
func (b *Bounds) Calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.calls
}
