package admission

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rs/zerolog"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/configcache"
	"flexiq/pkg/store/sqlite"
	"flexiq/pkg/testkit"
)

// BenchmarkEnqueue is single enqueues of many callers at once, without a
// transport: the way in, the group commit and the store.
func BenchmarkEnqueue(b *testing.B) {
	st, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "flexiq.db"), sqlite.Options{Timeout: testkit.Patience})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	caches := configcache.NewCaches(st, func() bool { return true }, nil)
	defer caches.Close()
	svc, err := New(DefaultConfig(), Deps{Store: st, Jobs: st, Quotas: caches.Quotas, Overrides: caches.Overrides, Hints: &ears{}, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	defer svc.Close(context.Background())
	const inFlight, namespaces = 1000, 8
	room := make(chan struct{}, inFlight)
	b.ReportAllocs()
	for i := range b.N {
		room <- struct{}{}
		req := &flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "send", Payload: []byte(`{"to":"a"}`)}}
		svc.enqueue(caller(b.Context(), "ns-"+strconv.Itoa(i%namespaces)), req, func(_ *flexiqv1.EnqueueResponse, err error) {
			if err != nil {
				b.Error(err)
			}
			<-room
		})
	}
	for range inFlight {
		room <- struct{}{}
	}
}
