package main

import (
	"io"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// TestZeroIsALimitOnEveryBackend: a limit of zero lets nothing through, also after
// another field changed and after a restart, and is told as zero.
func TestZeroIsALimitOnEveryBackend(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		args := append([]string{"--retention-tick=100ms"}, s.args...)
		d, stop := inProcessLogging(t, io.Discard, args...)
		c, token := tenantToken(t, d.opts.DataDir, "", "vetch")
		limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(0)})
		nothingPends := func(when string) {
			t.Helper()
			_, err := c.Enqueue(t.Context(), client.Job{Task: "work"})
			full(t, err, "queue 'default' is full: 0 pending >= max_pending 0")
			got, err := c.Admin().GetQuota(t.Context(), &flexiqv1.GetQuotaRequest{})
			if err != nil || got.GetQuota().MaxPending == nil || got.GetQuota().GetMaxPending() != 0 {
				t.Errorf("%s the quota is %v, %v", when, got.GetQuota(), err)
			}
		}
		nothingPends("at once")
		edit(t, c, &flexiqv1.NamespaceQuota{MaxRunning: proto.Int64(0)})
		nothingPends("after another field changed")
		stop()
		d, stop = inProcessLogging(t, io.Discard, args...)
		defer stop()
		c = dialAs(t, d.natsURL, token)
		nothingPends("after a restart")

		edit(t, c, nil, "max_pending")
		enqueue(t, c, 5)
		if res, got := post(t, d, token, "WorkerService/Claim", `{"max_jobs":5,"wait":"1s"}`); res.StatusCode != http.StatusOK || len(got["jobs"].([]any)) != 0 {
			t.Errorf("with max_running 0 a claim got %d, %v", res.StatusCode, got)
		}
		holds(t, c, 5, 0, 0, 0)
		for j, err := range c.Jobs(t.Context(), &flexiqv1.ListJobsRequest{}) {
			if err != nil || j.GetStatus() != "pending" || j.GetAttempt() != 0 {
				t.Errorf("a job that may not run is %v, %v", j, err)
			}
		}

		edit(t, c, nil, "max_running")
		drain(t, c, nil)
		holds(t, c, 0, 0, 5, 0)
		limit(t, c, &flexiqv1.NamespaceQuota{MaxArchivedRows: proto.Int64(0)})
		testkit.Eventually(t, "no archived row is kept", func() bool {
			u, err := c.Admin().GetUsage(t.Context())
			return err == nil && u.GetArchived() == 0
		})
		holds(t, c, 0, 0, 0, 0)
		for _, rate := range []string{"0/s", "00/s", "-1/s"} {
			_, err := c.Admin().SetQuota(t.Context(), &flexiqv1.SetQuotaRequest{Quota: &flexiqv1.NamespaceQuota{EnqueueRate: proto.String(rate)}})
			if f := fault.Of(err); !fault.Is(err, fault.InvalidRequest) || f.Details[fault.KeyField] != "quota.enqueue_rate" {
				t.Errorf("the rate %s: %v", rate, err)
			}
		}
		if _, err := c.Admin().ClearQuota(t.Context(), &flexiqv1.ClearQuotaRequest{}); err != nil {
			t.Error(err)
		}
		enqueue(t, c, 3)
	})
}

// edit changes some fields of a namespace's quota.
func edit(t *testing.T, c *client.Client, q *flexiqv1.NamespaceQuota, unset ...string) {
	t.Helper()
	if _, err := c.Admin().EditQuota(t.Context(), &flexiqv1.EditQuotaRequest{Quota: q, Unset: unset}); err != nil {
		t.Fatal(err)
	}
}

// TestRateChangesWhileBucketsLive: a change of a rate is in force in both
// admissions at once. A raise adds the difference of the capacities, a cut
// clamps, and setting a cleared rate again refills nothing.
func TestRateChangesWhileBucketsLive(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		url := testkit.NATS(t).ClientURL()
		d := inProcess(t, append([]string{"--nats-url=" + url}, s.args...)...)
		inProcess(t, append([]string{admissionService, "--nats-url=" + url}, s.args...)...)
		c := tenant(t, d.opts.DataDir, url, "sorrel")
		began := time.Now()
		admits := func(when string, calls, want int) {
			t.Helper()
			got, _ := flood(t, c, calls)
			refilled := int(time.Since(began)/(time.Hour/200)) + 1 // at the highest rate
			if got < want || got > want+refilled {
				t.Errorf("%s: %d of %d calls admitted, want %d", when, got, calls, want)
			}
		}
		rate := func(r string) { limit(t, c, &flexiqv1.NamespaceQuota{EnqueueRate: proto.String(r)}) }
		rate("10/h")
		admits("a new rate", 40, 10)
		rate("200/h")
		admits("after the raise", 100, 100)
		rate("10/h")
		admits("after the cut", 40, 10)
		rate("200/h")
		admits("after another raise", 300, 190)
		if _, err := c.Admin().ClearQuota(t.Context(), &flexiqv1.ClearQuotaRequest{}); err != nil {
			t.Fatal(err)
		}
		admits("without a rate", 50, 50)
		rate("10/h")
		admits("after it was set again", 40, 0)
	})
}

// TestLoweredCapsOnEveryBackend: what is over a lowered cap stays, is told, and
// nothing new is let in until there is room; rows go down to the ceiling and stay
// there.
func TestLoweredCapsOnEveryBackend(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		d := inProcess(t, append([]string{"--retention-tick=100ms"}, s.args...)...)
		t.Run("pending", func(t *testing.T) { loweredDepth(t, tenant(t, d.opts.DataDir, "", "wicket")) })
		t.Run("rows", func(t *testing.T) { loweredRows(t, tenant(t, d.opts.DataDir, "", "wicket rows")) })
	})
}

func loweredDepth(t *testing.T, c *client.Client) {
	const before, most = 800, 100
	results, err := c.EnqueueBatch(t.Context(), jobs(before))
	if err != nil {
		t.Fatal(err)
	}
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(most)})
	for range 3 {
		_, err := c.Enqueue(t.Context(), client.Job{Task: "work"})
		full(t, err, "queue 'default' is full: 800 pending >= max_pending 100")
	}
	u, err := c.Admin().GetUsage(t.Context())
	if err != nil || len(u.GetLimits()) != 1 || u.GetLimits()[0].GetOver() != before-most || u.GetLimits()[0].GetCurrent() != before {
		t.Errorf("usage tells %v, %v", u.GetLimits(), err)
	}
	cancel := func(n int) {
		var ids []string
		for _, r := range results[:n] {
			ids = append(ids, r.Job.GetId())
		}
		results = results[n:]
		if got, err := c.Cancel(t.Context(), ids...); err != nil || got.GetCancelled() != int64(n) {
			t.Fatalf("cancel %d: %v, %v", n, got, err)
		}
	}
	cancel(before - most)
	_, err = c.Enqueue(t.Context(), client.Job{Task: "work"})
	full(t, err, "queue 'default' is full: 100 pending >= max_pending 100")
	cancel(1)
	enqueue(t, c, 1)
	_, err = c.Enqueue(t.Context(), client.Job{Task: "work"})
	full(t, err, "queue 'default' is full: 100 pending >= max_pending 100")
}

func loweredRows(t *testing.T, c *client.Client) {
	const rows, ceiling = 5000, 100
	for range rows / 1000 {
		enqueue(t, c, 1000)
	}
	for gone := int64(0); gone < rows; {
		got, err := c.CancelMatching(t.Context(), &flexiqv1.CancelFilter{Queue: "default"})
		if err != nil {
			t.Fatal(err)
		}
		gone += got.GetCancelled()
	}
	holds(t, c, 0, 0, rows, 0)
	limit(t, c, &flexiqv1.NamespaceQuota{MaxArchivedRows: proto.Int64(ceiling)})
	archived := func() int64 {
		u, err := c.Admin().GetUsage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if u.GetArchived() < ceiling {
			t.Fatalf("%d rows are left of a ceiling of %d", u.GetArchived(), ceiling)
		}
		return u.GetArchived()
	}
	testkit.Eventually(t, "the rows go down to the ceiling", func() bool { return archived() == ceiling })
	// One row more is one row less: a sweep came after the ceiling was reached.
	if _, err := c.EnqueueBatch(t.Context(), jobs(1)); err != nil {
		t.Fatal(err)
	}
	drain(t, c, nil)
	testkit.Eventually(t, "a later sweep keeps the ceiling", func() bool { return archived() == ceiling })
}
