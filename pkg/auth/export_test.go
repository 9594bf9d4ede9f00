package auth

// MaxAddresses bounds what [Attempts] remembers.
const MaxAddresses = maxAddresses

// Remembered is how many addresses have failures that may still count.
func (a *Attempts) Remembered() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.spent)
}
