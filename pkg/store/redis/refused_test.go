package redis

import (
	"testing"

	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// TestRefusedInsertCostsNothing: a script reads and checks everything before it
// writes, so what the server refuses of a namespace leaves neither jobs nor spent
// tokens there, and its neighbours in the group are admitted. No single call of a
// namespace can be refused alone, because one script writes them all.
func TestRefusedInsertCostsNothing(t *testing.T) {
	s, ctx := open(t, Options{}), t.Context()
	raw := []byte(`{"max_pending":11,"enqueue_rate":"12/h"}`)
	q, err := quota.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := s.PutQuota(ctx, store.QuotaChange{Namespace: "bad", Raw: raw, Rate: q.EnqueueRate})
	if err != nil {
		t.Fatal(err)
	}
	mine := func(n int) store.Call {
		c := calls(t, "bad", 1, n)[0]
		c.Quota, c.Stamp = q, doc.Stamp
		return c
	}
	enqueue(t, s, mine(1))

	// A value of another type in the place of an index, which the server refuses to read.
	index, aside := s.key(tag("bad"), "live"), s.key(tag("bad"), "aside")
	if err := s.db.Rename(ctx, index, aside).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Set(ctx, index, "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		group := []store.Call{calls(t, "good", 1, 1)[0], mine(2), calls(t, "good too", 1, 1)[0]}
		out, err := s.Admit(ctx, group)
		if err != nil {
			t.Fatal(err)
		}
		if !fault.Is(out[1].Err, fault.Internal) || out[0].Err != nil || out[2].Err != nil {
			t.Fatalf("round %d: %v, %v, %v", round, out[0].Err, out[1].Err, out[2].Err)
		}
	}
	if err := s.db.Rename(ctx, aside, index).Err(); err != nil {
		t.Fatal(err)
	}

	for range 10 {
		enqueue(t, s, mine(1))
	}
	u, err := s.Usage(ctx, []string{"bad", "good", "good too"})
	if err != nil || u[0].Pending != 11 || u[0].Bucket.Tokens() != 1 || u[1].Pending != 20 || u[2].Pending != 20 {
		t.Errorf("usage %+v, %v", u, err)
	}
	out, err := s.Admit(ctx, []store.Call{mine(1)})
	if err != nil || !fault.Is(out[0].Err, fault.QueueFull) {
		t.Errorf("one more: %+v, %v", out, err)
	}
	consistent(t, s)
}
