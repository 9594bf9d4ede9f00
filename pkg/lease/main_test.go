package lease

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
)

// childURL makes this program a candidate of its own process, for tests that
// freeze and kill processes. It holds the server's URL.
const childURL = "FLEXIQ_LEASE_TEST_URL"

// childTTL is the lease of children and of those who compete with them.
const childTTL = 2 * time.Second

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		if err := child(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// child says when it leads, and then answers each line of its input with what
// the guard says at that moment.
func child(url string) error {
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	e := New(js, Options{
		Key: key, Holder: "child", TTL: childTTL,
		Term: func(context.Context) (int64, error) { return 1, nil },
	})
	ctx, stop := context.WithCancel(context.Background())
	return e.Run(ctx, func(ctx context.Context, _ int64) error {
		defer stop()
		fmt.Println("leading")
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println("guard:", Guard(ctx))
		}
		return nil
	})
}
