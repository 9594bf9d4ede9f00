package configcache

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/quota"
	"flexiq/pkg/store"
)

// documents is the part of a store that the caches read.
type documents struct {
	quotas    map[string]store.Document
	overrides map[string][]store.Override
	tokens    map[string]*store.Token
	down      bool
}

func (d *documents) Overrides(_ context.Context, namespaces []string) ([][]store.Override, error) {
	if d.down {
		return nil, fault.New(fault.StorageUnavailable, "down")
	}
	out := make([][]store.Override, len(namespaces))
	for i, ns := range namespaces {
		out[i] = d.overrides[ns]
	}
	return out, nil
}

func (d *documents) Quotas(_ context.Context, namespaces []string) ([]store.Document, error) {
	if d.down {
		return nil, fault.New(fault.StorageUnavailable, "down")
	}
	out := make([]store.Document, len(namespaces))
	for i, ns := range namespaces {
		out[i] = d.quotas[ns]
	}
	return out, nil
}

func (d *documents) Token(_ context.Context, id string) (*store.Token, error) {
	switch t := d.tokens[id]; {
	case d.down:
		return nil, fault.New(fault.StorageUnavailable, "down")
	case t == nil:
		return nil, fault.Missing("token")
	default:
		return t, nil
	}
}

// always is the freshness of a poller that never fails.
func always() bool { return true }

func TestQuotasAreReadAsEnforcementReadsThem(t *testing.T) {
	five, at := int64(5), time.UnixMicro(1e15)
	src := &documents{quotas: map[string]store.Document{
		"limited":   {Raw: []byte(`{"max_pending":5,"of_tomorrow":true}`), Stamp: store.Stamp{Revision: 3}, UpdatedAt: at},
		"inherits":  {Raw: []byte(`{"max_running":5}`), Stamp: store.Stamp{Revision: 1, Default: 2}, Inherited: true},
		"scribbled": {Raw: []byte(`{"max_pending":-1}`), Stamp: store.Stamp{Revision: 9}},
		"cleared":   {Stamp: store.Stamp{Revision: 4}},
	}}
	got, err := LoadQuotas(src)(t.Context(), []string{"limited", "inherits", "scribbled", "cleared", "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	if !fault.Is(got[2].Err, fault.QuotaUnreadable) {
		t.Errorf("the scribbled document's error is %v, want QUOTA_UNREADABLE", got[2].Err)
	}
	got[2].Err = nil
	want := []Quota{
		{Quota: quota.Quota{MaxPending: &five}, Stamp: store.Stamp{Revision: 3}, Raw: src.quotas["limited"].Raw, UpdatedAt: at},
		{Quota: quota.Quota{MaxRunning: &five}, Stamp: store.Stamp{Revision: 1, Default: 2}, Raw: src.quotas["inherits"].Raw, Inherited: true},
		{Stamp: store.Stamp{Revision: 9}, Raw: src.quotas["scribbled"].Raw},
		{Stamp: store.Stamp{Revision: 4}},
		{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	src.down = true
	if _, err := LoadQuotas(src)(t.Context(), []string{"limited"}); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("without a store: %v, want STORAGE_UNAVAILABLE", err)
	}
}

func TestDefaultsOfATaskGoBeforeThoseOfItsQueue(t *testing.T) {
	three, five, minute, low := int32(3), int32(5), time.Minute, int32(-1)
	got := OverridesOf([]store.Override{
		{Kind: store.OverrideQueue, Name: "q", MaxAttempts: &three, Timeout: &minute},
		{Kind: store.OverrideQueue, Name: "capped", MaxConcurrent: new(int64(1))},
		{Kind: store.OverrideTask, Name: "t", MaxAttempts: &five, Priority: &low},
	})
	for of, want := range map[[2]string]job.Defaults{
		{"q", "t"}:      {MaxAttempts: &five, Timeout: &minute, Priority: &low},
		{"q", "u"}:      {MaxAttempts: &three, Timeout: &minute},
		{"t", "q"}:      {}, // a queue is no task
		{"capped", "u"}: {},
		{"other", "t"}:  {MaxAttempts: &five, Priority: &low},
	} {
		if diff := cmp.Diff(want, got.Defaults(of[0], of[1])); diff != "" {
			t.Errorf("queue and task %q (-want +got):\n%s", of, diff)
		}
	}
	src := &documents{overrides: map[string][]store.Override{"a": {{Kind: store.OverrideTask, Name: "t", MaxAttempts: &five}}}}
	caches := NewCaches(src, always, nil)
	defer caches.Close()
	attempts := func(ns string) *int32 {
		o, err := caches.Overrides.Get(t.Context(), ns)
		if err != nil {
			t.Fatal(err)
		}
		return o.Defaults("q", "t").MaxAttempts
	}
	if a, b := attempts("a"), attempts("b"); a == nil || *a != 5 || b != nil {
		t.Errorf("a has %v, b has %v", a, b)
	}
	src.overrides["a"] = nil
	if a := attempts("a"); a == nil {
		t.Error("an override is read again without a change")
	}
	caches.Hint(store.KindOverride, "a", 0)
	if a := attempts("a"); a != nil {
		t.Errorf("after it was cleared a has %d", *a)
	}
	src.down = true
	if _, err := caches.Overrides.Get(t.Context(), "c"); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("without a store: %v, want STORAGE_UNAVAILABLE", err)
	}
}

func TestTokensAreKeptAndSoIsTheirAbsence(t *testing.T) {
	src := &documents{tokens: map[string]*store.Token{"t1": {ID: "t1", Namespace: "heron"}}}
	caches := NewCaches(src, always, nil)
	defer caches.Close()
	get := func(id string) (*store.Token, error) { return caches.Tokens.Get(t.Context(), id) }
	if got, err := get("t1"); err != nil || got.Namespace != "heron" {
		t.Errorf("t1 = %v, %v", got, err)
	}
	if got, err := get("t2"); err != nil || got != nil {
		t.Errorf("t2 = %v, %v, want nothing", got, err)
	}
	src.tokens["t2"] = &store.Token{ID: "t2"}
	if got, err := get("t2"); err != nil || got != nil {
		t.Errorf("t2 = %v, %v: its absence is not kept", got, err)
	}
	caches.Hint(store.KindToken, "t2", 0)
	if got, err := get("t2"); err != nil || got.ID != "t2" {
		t.Errorf("after the hint t2 = %v, %v", got, err)
	}
	src.down = true
	if _, err := get("t3"); !fault.Is(err, fault.StorageUnavailable) {
		t.Errorf("without a store: %v, want STORAGE_UNAVAILABLE", err)
	}
}

func TestChangesReachTheCacheOfTheirKind(t *testing.T) {
	src := &documents{
		quotas: map[string]store.Document{"a": {Stamp: store.Stamp{Revision: 5}}},
		tokens: map[string]*store.Token{"a": {ID: "a"}},
	}
	caches := NewCaches(src, always, nil)
	defer caches.Close()
	tests := map[string]struct {
		tell                   func()
		quota, override, token bool // of "a": is it still there?
	}{
		"a quota":            {func() { caches.Hint(store.KindQuota, "a", 6) }, false, true, true},
		"an old quota":       {func() { caches.Hint(store.KindQuota, "a", 5) }, true, true, true},
		"the default quota":  {func() { caches.Changed([]store.Change{{Kind: store.KindDefaultQuota}}) }, false, true, true},
		"another namespace":  {func() { caches.Changed([]store.Change{{Kind: store.KindQuota, Key: "b"}}) }, true, true, true},
		"an override":        {func() { caches.Hint(store.KindOverride, "a", 1) }, true, false, true},
		"a token":            {func() { caches.Changed([]store.Change{{Kind: store.KindToken, Key: "a"}}) }, true, true, false},
		"something unknown":  {func() { caches.Changed([]store.Change{{Kind: "novelty", Key: "a"}}) }, true, true, true},
		"nothing":            {func() { caches.Changed([]store.Change{}) }, true, true, true},
		"anything (no list)": {func() { caches.Changed(nil) }, false, false, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := caches.Quotas.Get(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if _, err := caches.Overrides.Get(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if _, err := caches.Tokens.Get(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			tc.tell()
			if _, ok := caches.Quotas.Peek("a"); ok != tc.quota {
				t.Errorf("the quota is there: %v, want %v", ok, tc.quota)
			}
			if _, ok := caches.Overrides.Peek("a"); ok != tc.override {
				t.Errorf("the overrides are there: %v, want %v", ok, tc.override)
			}
			if _, ok := caches.Tokens.Peek("a"); ok != tc.token {
				t.Errorf("the token is there: %v, want %v", ok, tc.token)
			}
		})
	}
}

func TestMetricsTellOfEffect(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	src := &documents{quotas: map[string]store.Document{"a": {Stamp: store.Stamp{Revision: 1}, UpdatedAt: time.Now().Add(-time.Hour)}}}
	caches := NewCaches(src, always, NewMetrics(reg))
	defer caches.Close()
	load := func(revision int64) {
		src.quotas["a"] = store.Document{Stamp: store.Stamp{Revision: revision}, UpdatedAt: time.Now()}
		caches.Hint(store.KindQuota, "a", 0)
		for range 2 {
			if _, err := caches.Quotas.Get(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
	}
	load(1) // cold: nobody knows what it replaces
	load(2) // a change
	load(2) // the same again
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == "quota" {
				got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	want := map[string]float64{
		"flexiq_config_hits_total":          3,
		"flexiq_config_misses_total":        3,
		"flexiq_config_loads_total":         3,
		"flexiq_config_loaded_keys_total":   3,
		"flexiq_config_load_failures_total": 0,
		"flexiq_config_entries":             1,
		"flexiq_config_effect_seconds":      1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The number of namespaces that stand still goes up when their quota is read, and
// down when it is repaired.
func TestUnreadableQuotasAreCounted(t *testing.T) {
	broken := store.Document{Raw: []byte(`{"max_pending":-1}`)}
	src := &documents{quotas: map[string]store.Document{"a": broken, "b": broken, "c": {Raw: []byte(`{"max_pending":1}`)}}}
	caches := NewCaches(src, always, nil)
	defer caches.Close()
	want := func(n int) {
		t.Helper()
		for _, ns := range []string{"a", "b", "c", "nobody"} {
			if _, err := caches.Quotas.Get(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
		}
		if got := caches.Unreadable(); got != n {
			t.Errorf("%d quotas cannot be read, want %d", got, n)
		}
	}
	want(2)
	src.quotas["a"] = store.Document{}
	caches.Hint(store.KindQuota, "a", 0)
	want(1)
	src.quotas["b"] = src.quotas["c"]
	caches.Changed(nil)
	want(0)
}
