package testkit

import (
	"net"
	"strconv"
	"testing"
)

// FreePort returns a port of the loopback that was free a moment ago, for a
// server that must come back on the same one after a restart.
func FreePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
