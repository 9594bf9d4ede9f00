package rpc_test

import (
	"testing"

	"flexiq/pkg/rpc"
)

func TestBounds(t *testing.T) {
	b := rpc.NewBounds(4, 400)
	enter := func(ns string, bytes int64, want bool) {
		t.Helper()
		if got := b.Enter(ns, bytes); got != want {
			t.Errorf("Enter(%s, %d) = %v with %d in flight", ns, bytes, got, b.Calls())
		}
	}
	for range 3 {
		enter("lark", 1, true)
	}
	enter("lark", 1, false) // three quarters
	enter("wren", 1, true)
	enter("wren", 1, false) // full
	b.Leave("lark", 1)
	enter("wren", 1, true)
	for range 2 {
		b.Leave("lark", 1)
		b.Leave("wren", 1)
	}
	if b.Calls() != 0 {
		t.Fatalf("%d in flight at the end", b.Calls())
	}

	enter("lark", 1000, true) // larger than everything, alone
	enter("wren", 1, false)
	b.Leave("lark", 1000)
	enter("lark", 200, true)
	enter("lark", 101, false)
	enter("lark", 100, true)
	enter("wren", 101, false)
	enter("wren", 100, true)
}
