package bus

import (
	"net"
	"sync/atomic"
	"time"
)

// slowRefusal tells a server that refuses credentials from one that could not
// have them checked: a server that asks somebody else (auth callout) waits for
// two seconds and then says the same as to a wrong token.
const slowRefusal = 1500 * time.Millisecond

// refusals know whether the server has refused the credentials. They dial, so
// as to know how long the refusal took.
type refusals struct {
	net.Dialer
	dialed atomic.Int64 // unix nanoseconds
	sure   atomic.Bool
}

// Dial implements nats.CustomDialer.
func (r *refusals) Dial(network, address string) (net.Conn, error) {
	conn, err := r.Dialer.Dial(network, address)
	r.dialed.Store(time.Now().UnixNano())
	return conn, err
}

// slow reports whether a refusal that comes now took too long to be believed.
func (r *refusals) slow() bool {
	at := r.dialed.Load()
	return at != 0 && time.Since(time.Unix(0, at)) >= slowRefusal
}

// Refused reports whether the server refuses the credentials: at the last
// attempt to connect again it said so, and not for want of somebody who checks
// them.
func (c *Conn) Refused() bool { return c.refusals.sure.Load() && !c.nc.IsConnected() }
