package embedded

// Sweep forgets what is closed, at once.
func (a *Authenticator) Sweep() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
}

// Remembered is how many connections of a token are remembered.
func (a *Authenticator) Remembered(tokenID string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.conns[tokenID])
}
