package auth_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flexiq/pkg/auth"
)

func TestPermissions(t *testing.T) {
	tests := []struct {
		name               string
		id                 auth.Identity
		publish, subscribe []string
	}{
		{
			"producer", auth.Identity{Namespace: "a.b", TokenID: "t1", Scopes: []auth.Scope{auth.Produce}},
			[]string{
				"fq.v1.enqueue.a=2eb.t1", "fq.v1.enqueue-batch.a=2eb.t1", "fq.v1.enqueue-calls.a=2eb.t1",
				"fq.v1.get-job.a=2eb.t1", "fq.v1.list-jobs.a=2eb.t1", "fq.v1.cancel-jobs.a=2eb.t1", "fqx.v1.a=2eb.>",
			},
			[]string{"_INBOX.a=2eb.t1.>"},
		},
		{
			"worker", auth.Identity{Namespace: "*", TokenID: "t2", Scopes: []auth.Scope{auth.Work}},
			[]string{"fq.v1.claim.=2a.t2", "fq.v1.heartbeat.=2a.t2", "fq.v1.settle.=2a.t2"},
			[]string{"_INBOX.=2a.t2.>"},
		},
		{
			"inspector", auth.Identity{Namespace: ">", TokenID: "t3", Scopes: []auth.Scope{auth.Inspect}},
			[]string{
				"fq.v1.get-job.=3e.t3", "fq.v1.list-jobs.=3e.t3", "fq.v1.get-quota.=3e.t3", "fq.v1.get-usage.=3e.t3",
				"fq.v1.list-queues.=3e.t3", "fq.v1.list-workers.=3e.t3", "fq.v1.explain.=3e.t3",
				"fq.v1.list-dead-letters.=3e.t3", "fq.v1.get-dead-letter.=3e.t3", "fq.v1.list-schedules.=3e.t3", "fq.v1.list-triggers.=3e.t3",
				"fq.v1.list-overrides.=3e.t3",
				"fq.v1.list-audit.=3e.t3",
				"fq.v1.get-setting.=3e.t3", "fq.v1.list-settings.=3e.t3",
			},
			[]string{"_INBOX.=3e.t3.>", "fqe.v1.=3e.>"},
		},
		{
			"admin", auth.Identity{Namespace: "default", TokenID: "t4", Scopes: []auth.Scope{auth.Admin}},
			[]string{
				"fq.v1.set-quota.default.t4", "fq.v1.edit-quota.default.t4", "fq.v1.clear-quota.default.t4",
				"fq.v1.delete-dead-letters.default.t4", "fq.v1.replay-dead-letters.default.t4",
				"fq.v1.put-schedule.default.t4", "fq.v1.delete-schedule.default.t4", "fq.v1.pause-schedule.default.t4",
				"fq.v1.resume-schedule.default.t4", "fq.v1.run-schedule.default.t4", "fq.v1.put-trigger.default.t4", "fq.v1.delete-trigger.default.t4", "fq.v1.set-override.default.t4", "fq.v1.clear-override.default.t4",
				"fq.v1.create-token.default.t4", "fq.v1.list-tokens.default.t4", "fq.v1.revoke-token.default.t4",
				"fq.v1.put-setting.default.t4", "fq.v1.delete-setting.default.t4",
			},
			[]string{"_INBOX.default.t4.>"},
		},
		{
			"platform", auth.Identity{TokenID: "t5", Scopes: []auth.Scope{auth.Platform}},
			[]string{
				"fq.v1.get-quota.=.t5", "fq.v1.set-quota.=.t5", "fq.v1.edit-quota.=.t5", "fq.v1.clear-quota.=.t5",
				"fq.v1.list-audit.=.t5", "fq.v1.create-token.=.t5", "fq.v1.list-tokens.=.t5", "fq.v1.revoke-token.=.t5",
				"fq.v1.list-namespaces.=.t5", "fq.v1.delete-namespace.=.t5", "fq.v1.exchange-token.=.t5",
			},
			[]string{"_INBOX.=.t5.>"},
		},
		{"nobody", auth.Identity{Namespace: "a", TokenID: "t6"}, nil, []string{"_INBOX.a.t6.>"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			publish, subscribe := auth.Permissions(tt.id)
			if diff := cmp.Diff(tt.publish, publish); diff != "" {
				t.Errorf("publish (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.subscribe, subscribe); diff != "" {
				t.Errorf("subscribe (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServicePermissions(t *testing.T) {
	publish, subscribe := auth.ServicePermissions()
	for _, s := range slices.Concat(publish, subscribe) {
		if s == ">" || strings.HasPrefix(s, "$SYS") || strings.HasPrefix(s, "$SRV") {
			t.Errorf("services may use %q", s)
		}
	}
}
