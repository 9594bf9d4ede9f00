package config

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

var (
	now   = time.Date(2026, 11, 1, 6, 30, 0, 0, time.UTC)
	fifty = quota.Rate{Count: 50, Unit: quota.PerSecond}
)

func TestLimits(t *testing.T) {
	q := quota.Quota{
		MaxPending: proto.Int64(100), OnExcess: quota.Drop, EnqueueRate: &fifty, MaxRunning: proto.Int64(0),
		MaxArchivedRows: proto.Int64(10), MaxDeadRows: proto.Int64(5),
	}
	u := store.Usage{
		Pending: 800, Running: 3, Archived: 10, Dead: 4, Now: now,
		Bucket: quota.Bucket{}.Refill(fifty, now.Add(-100*time.Millisecond)).Take(20),
	}
	want := []*flexiqv1.LimitUsage{
		{Field: "max_pending", Limit: 100, Current: 800, Over: 700},
		{Field: "enqueue_rate", Limit: 50, Current: 35}, // 30 left, 5 refilled
		{Field: "max_running", Limit: 0, Current: 3, Over: 3},
		{Field: "max_archived_rows", Limit: 10, Current: 10},
		{Field: "max_dead_rows", Limit: 5, Current: 4},
	}
	if diff := cmp.Diff(want, limits(q, u), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if got := limits(quota.Quota{OnExcess: quota.Drop}, u); got != nil {
		t.Errorf("unlimited: %v", got)
	}
}

func TestPreview(t *testing.T) {
	empty := quota.Bucket{}.Refill(fifty, now).Take(50)
	for _, c := range []struct {
		name  string
		quota quota.Quota
		usage store.Usage
		want  *flexiqv1.QuotaPreview
	}{
		{name: "no limits", usage: store.Usage{Pending: 9, Running: 9, Archived: 9, Dead: 9}, want: &flexiqv1.QuotaPreview{}},
		{
			name: "room for one more", usage: store.Usage{Pending: 9, Running: 9, Archived: 9, Dead: 9, Now: now},
			quota: quota.Quota{
				MaxPending: proto.Int64(10), MaxRunning: proto.Int64(10), EnqueueRate: &fifty,
				MaxArchivedRows: proto.Int64(9), MaxDeadRows: proto.Int64(9),
			},
			want: &flexiqv1.QuotaPreview{},
		},
		{
			name: "exactly full", usage: store.Usage{Pending: 10, Running: 10, Archived: 10, Dead: 12, Now: now, Bucket: empty},
			quota: quota.Quota{
				MaxPending: proto.Int64(10), MaxRunning: proto.Int64(10), EnqueueRate: &fifty,
				MaxArchivedRows: proto.Int64(9), MaxDeadRows: proto.Int64(0),
			},
			want: &flexiqv1.QuotaPreview{
				Over: []*flexiqv1.LimitReached{
					{Field: "max_pending", Limit: 10, Current: 10},
					{Field: "enqueue_rate", Limit: 50, Current: 0},
					{Field: "max_running", Limit: 10, Current: 10},
				},
				Delete: []*flexiqv1.TableExcess{{Table: "archived", Rows: 1}, {Table: "dead", Rows: 12}},
			},
		},
		{
			name: "zero", quota: quota.Quota{MaxPending: proto.Int64(0)},
			want: &flexiqv1.QuotaPreview{Over: []*flexiqv1.LimitReached{{Field: "max_pending"}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, preview(c.quota, c.usage), protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFullness(t *testing.T) {
	for _, c := range []struct {
		name string
		view view
		want float64
	}{
		{"no limits", view{usage: store.Usage{Pending: 5}}, 0},
		{"half", view{usage: store.Usage{Pending: 5, Running: 1}, quota: quota.Quota{MaxPending: proto.Int64(10), MaxRunning: proto.Int64(9)}}, 0.5},
		{"over", view{usage: store.Usage{Dead: 30}, quota: quota.Quota{MaxDeadRows: proto.Int64(10)}}, 3},
		{"zero and empty", view{quota: quota.Quota{MaxPending: proto.Int64(0)}}, 1},
		{"zero and not empty", view{usage: store.Usage{Pending: 4}, quota: quota.Quota{MaxPending: proto.Int64(0)}}, 5},
		{"full bucket", view{usage: store.Usage{Now: now}, quota: quota.Quota{EnqueueRate: &fifty}}, 0},
		{"unreadable", view{err: fault.New(fault.QuotaUnreadable, "")}, math.MaxFloat64},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fullness(c.view); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// Every field keeps its presence through the interface and back: zero stays a
// limit, absent stays unlimited, on_excess is always answered.
func TestQuotaKeepsPresence(t *testing.T) {
	asked := &flexiqv1.NamespaceQuota{
		MaxPending: proto.Int64(0), EnqueueRate: proto.String("7/h"), MaxDeadRows: proto.Int64(math.MaxInt64),
	}
	q, err := fromProto(asked)
	if err != nil {
		t.Fatal(err)
	}
	want := proto.Clone(asked).(*flexiqv1.NamespaceQuota)
	want.OnExcess = proto.String("reject")
	if diff := cmp.Diff(want, toProto(q), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestWrongQuotasAreRefusedByName(t *testing.T) {
	for field, q := range map[string]*flexiqv1.NamespaceQuota{
		"max_pending":       {MaxPending: proto.Int64(-1)},
		"max_running":       {MaxRunning: proto.Int64(-1)},
		"max_archived_rows": {MaxArchivedRows: proto.Int64(-1)},
		"max_dead_rows":     {MaxDeadRows: proto.Int64(math.MinInt64)},
		"on_excess":         {OnExcess: proto.String("")},
		"enqueue_rate":      {EnqueueRate: proto.String("0/s")},
	} {
		_, err := fromProto(q)
		if !fault.Is(err, fault.InvalidRequest) || fault.Of(err).Details[fault.KeyField] != "quota."+field ||
			!strings.HasPrefix(fault.Of(err).Message, "quota."+field+": must ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
