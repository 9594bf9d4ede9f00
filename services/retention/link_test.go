package retention

import (
	"io"
	"net"
	"sync"
	"testing"
)

// link is the way of one process to NATS, which can be cut without a word.
type link struct {
	l    net.Listener
	to   string
	wg   sync.WaitGroup
	mu   sync.Mutex
	cut  bool
	open map[net.Conn]bool
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{l: l, to: to, open: map[net.Conn]bool{}}
	k.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil || !k.keep(in, out) {
				in.Close()
				continue
			}
			k.wg.Go(func() { k.pipe(out, in) })
			k.wg.Go(func() { k.pipe(in, out) })
		}
	})
	return k
}

func (k *link) address() string { return k.l.Addr().String() }

// keep notes two ends; not while the link is cut.
func (k *link) keep(ends ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range ends {
		if k.cut {
			c.Close()
			continue
		}
		k.open[c] = true
	}
	return !k.cut
}

func (k *link) pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // until one side is closed
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range []net.Conn{to, from} {
		c.Close()
		delete(k.open, c)
	}
}

func (k *link) set(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut = cut; cut {
		for c := range k.open {
			c.Close()
		}
	}
}

func (k *link) close() {
	k.l.Close()
	k.set(true)
	k.wg.Wait()
}
