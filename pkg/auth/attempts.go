package auth

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of failed attempts to authenticate. An address may fail
// attemptBurst times at once and then once every attemptInterval.
const (
	attemptBurst    = 100
	attemptInterval = 200 * time.Millisecond
	// maxAddresses bounds what is remembered: about 100 bytes an address.
	maxAddresses = 1 << 14
	// evictionSample is how many addresses are looked at for one that is new.
	evictionSample = 8
)

// Attempts limits failed attempts to authenticate, by the address they come
// from. An address that is over its limit is not barred: whoever shares it, by
// a proxy or a NAT, would be barred with it. But nothing is looked up for it any
// more, so that only a token which this process knows already, or has let in
// before, is let in, and everything else gets the answer of any other failure.
//
// IPv6 addresses count by their network of 64 bits, which is what one customer
// has. Memory is bounded: when too many addresses fail at once, the ones that
// failed least are forgotten. It is safe for concurrent use, and a collector of its two counts.
type Attempts struct {
	now     func() time.Time
	failed  atomic.Int64
	refused atomic.Int64

	mu sync.Mutex
	// spent says for each address until when its failures count: each moves that
	// moment on by attemptInterval.
	spent map[netip.Addr]time.Time
}

// NewAttempts makes a limit under which nobody has failed yet.
func NewAttempts(now func() time.Time) *Attempts {
	return &Attempts{now: now, spent: make(map[netip.Addr]time.Time)}
}

// Over reports whether an address has used up its failures, and counts the
// attempt as refused if so. The address is a host, with or without a port; what
// is none counts as one address of its own.
func (a *Attempts) Over(address string) bool {
	key, now := network(address), a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	over := a.spent[key].Sub(now) > (attemptBurst-1)*attemptInterval
	if over {
		a.refused.Add(1)
	}
	return over
}

// Fail counts a failure of an address that is not over its limit.
func (a *Attempts) Fail(address string) {
	a.failed.Add(1)
	key, now := network(address), a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	until, known := a.spent[key]
	if !known {
		a.makeRoom(now)
	}
	if until.Before(now) {
		until = now
	}
	a.spent[key] = until.Add(attemptInterval)
}

// makeRoom looks at a few addresses, which a map gives in random order. It
// forgets those whose failures no longer count, and where there is no room the
// one that failed least.
func (a *Attempts) makeRoom(now time.Time) {
	var least netip.Addr
	seen := 0
	for key, until := range a.spent {
		if !until.After(now) {
			delete(a.spent, key)
		} else if _, kept := a.spent[least]; !kept || until.Before(a.spent[least]) {
			least = key
		}
		if seen++; seen == evictionSample {
			break
		}
	}
	if len(a.spent) >= maxAddresses {
		delete(a.spent, least)
	}
}

// network is what an address counts as.
func network(address string) netip.Addr {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Addr{}
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}
