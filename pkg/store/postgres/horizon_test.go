package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"flexiq/pkg/testkit"
)

// TestHorizon holds a snapshot in a session of its own server.
func TestHorizon(t *testing.T) {
	server := testkit.StartPostgres(t)
	s := openAt(t, server.URL(), Options{Schema: "horizon"})
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select 1"); err != nil {
		t.Fatal(err)
	}
	age := func() time.Duration {
		d, err := s.Horizon(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	const held = 200 * time.Millisecond
	testkit.Eventually(t, "the open transaction is seen to age", func() bool { return age() >= held })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "nothing is held any more", func() bool { return age() < held })
}
