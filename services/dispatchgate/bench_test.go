package dispatchgate

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/configcache"
	"flexiq/pkg/job"
	"flexiq/pkg/store"
	"flexiq/pkg/store/sqlite"
	"flexiq/pkg/testkit"
)

// BenchmarkWork is workers that claim ten jobs, settle them and claim again,
// without a transport.
func BenchmarkWork(b *testing.B) {
	st, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "flexiq.db"), sqlite.Options{Timeout: testkit.Patience})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	const namespaces, workers, perClaim = 8, 32, 10
	for made := 0; made < b.N; made += job.MaxBatch {
		calls := make([]store.Call, namespaces)
		for i := range calls {
			calls[i] = store.Call{Namespace: fmt.Sprintf("ns-%d", i), Origin: job.OriginEnqueue, Jobs: make([]job.Spec, job.MaxBatch/namespaces)}
			for k := range calls[i].Jobs {
				calls[i].Jobs[k].Task = "t"
				if err := calls[i].Jobs[k].Normalize("job", 0); err != nil {
					b.Fatal(err)
				}
			}
		}
		if _, err := st.Admit(b.Context(), calls); err != nil {
			b.Fatal(err)
		}
	}
	caches := configcache.NewCaches(st, func() bool { return true }, nil)
	defer caches.Close()
	gate, err := New(DefaultConfig(), Deps{Store: st, Quotas: caches.Quotas, Hints: &ears{}, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	defer gate.Close(context.Background())
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	var crew sync.WaitGroup
	for i := range workers {
		ctx := worker(b.Context(), fmt.Sprintf("ns-%d", i%namespaces))
		crew.Go(func() {
			for left.Load() > 0 {
				got := make(chan []*flexiqv1.ClaimedJob, 1)
				gate.claim(ctx, &flexiqv1.ClaimRequest{MaxJobs: perClaim}, func(res *flexiqv1.ClaimResponse, err error) {
					if err != nil {
						b.Error(err)
					}
					got <- res.GetJobs()
				})
				jobs := <-got
				if len(jobs) == 0 {
					return // this namespace is done
				}
				req := &flexiqv1.SettleRequest{}
				for _, j := range jobs {
					req.Settlements = append(req.Settlements, &flexiqv1.Settlement{JobId: j.GetJob().GetId(), Lease: j.GetLease(), Outcome: "complete"})
				}
				settled := make(chan error, 1)
				gate.settle(ctx, req, func(_ *flexiqv1.SettleResponse, err error) { settled <- err })
				if err := <-settled; err != nil {
					b.Error(err)
				}
				left.Add(-int64(len(jobs)))
			}
		})
	}
	crew.Wait()
}
