package testkit

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a TCP connection's way to a server that a test can disturb: everything
// that is sent goes through it. It is made by [NewLink].
type Link struct {
	listener net.Listener
	target   string
	pipes    sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]bool
	held   chan struct{} // closed when bytes may pass
	slow   int           // bytes a second towards the client; 0: no bound
	closed bool
}

// NewLink makes a link to an address. It is closed with the test.
func NewLink(t testing.TB, target string) *Link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &Link{listener: l, target: target, open: map[net.Conn]bool{}, held: make(chan struct{})}
	close(k.held)
	k.pipes.Go(k.accept)
	t.Cleanup(k.close)
	return k
}

// Address is what clients connect to.
func (k *Link) Address() string { return k.listener.Addr().String() }

// Hold lets no byte pass from now on. Connections stay open, and new ones are
// accepted: nobody is told, as when a host vanishes behind a router.
func (k *Link) Hold() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = make(chan struct{})
}

// Release lets everything pass again, what was held back first.
func (k *Link) Release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.held:
	default:
		close(k.held)
	}
	k.slow = 0
}

// Slow bounds what passes towards the clients, in bytes a second on each
// connection, as with one that reads slowly.
func (k *Link) Slow(bytes int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slow = bytes
}

func (k *Link) accept() {
	for {
		client, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.pipes.Go(func() { k.join(client) })
	}
}

func (k *Link) join(client net.Conn) {
	server, err := net.Dial("tcp", k.target)
	if err != nil {
		_ = client.Close()
		return
	}
	k.mu.Lock()
	k.open[client], k.open[server] = true, true
	closed := k.closed
	k.mu.Unlock()
	if closed {
		k.drop(client, server)
	}
	k.pipes.Go(func() { k.pipe(server, client, false) })
	k.pipe(client, server, true)
}

func (k *Link) drop(ends ...net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range ends {
		_ = c.Close()
		delete(k.open, c)
	}
}

// pipe carries bytes one way until either side is closed.
func (k *Link) pipe(to, from net.Conn, down bool) {
	defer k.drop(to, from)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf[:k.most(down)])
		if err != nil {
			return
		}
		if most := k.pass(down); most > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(most)) // being slow is what it is for
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// most is how many bytes are read at once: few of a slow link.
func (k *Link) most(down bool) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if down && k.slow > 0 {
		return max(k.slow/4, 1)
	}
	return 64 << 10
}

// pass waits until bytes may pass, and tells how many a second; 0: any number.
func (k *Link) pass(down bool) int {
	k.mu.Lock()
	held := k.held
	k.mu.Unlock()
	<-held
	k.mu.Lock()
	defer k.mu.Unlock()
	if !down {
		return 0
	}
	return k.slow
}

func (k *Link) close() {
	_ = k.listener.Close()
	k.Release()
	k.mu.Lock()
	k.closed = true
	for c := range k.open {
		_ = c.Close()
	}
	k.mu.Unlock()
	k.pipes.Wait()
}
