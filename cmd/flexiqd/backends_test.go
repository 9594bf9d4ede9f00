package main

import (
	"context"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/fault"
	"flexiq/pkg/testkit"
)

// kept is a store of a test's own, by the options that name it.
type kept struct {
	kind string
	args []string
	opts storeOptions
}

// stores makes a store of each kind that flexiqd knows.
var stores = map[string]func(t *testing.T, home string) kept{
	"sqlite": func(_ *testing.T, home string) kept { return keptAt("sqlite", "sqlite:"+home+"/store/flexiq.db", "") },
	"postgres": func(t *testing.T, _ string) kept {
		url, schema := testkit.PostgresSchema(t)
		return keptAt("postgres", url, schema)
	},
	"redis": func(t *testing.T, _ string) kept { return keptAt("redis", testkit.StartRedis(t).URL(), "") },
}

// eachStore runs a test, in a home folder of its own, over each of [stores].
func eachStore(t *testing.T, test func(t *testing.T, s kept)) {
	t.Helper()
	for kind, make := range stores {
		t.Run(kind, func(t *testing.T) { test(t, make(t, home(t))) })
	}
}

func keptAt(kind, url, schema string) kept {
	s := kept{kind: kind, args: []string{"--store=" + url}, opts: storeOptions{url: url, pgSchema: schema}}
	if schema != "" {
		s.args = append(s.args, "--pg-schema="+schema)
	}
	return s
}

// tenant connects to a namespace with a token of its own that may do everything.
func tenant(t *testing.T, dir, server, namespace string) *client.Client {
	t.Helper()
	c, _ := tenantToken(t, dir, server, namespace)
	return c
}

func tenantToken(t *testing.T, dir, server, namespace string) (*client.Client, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	made, err := dial(t, dir, "platform", server).Admin().CreateToken(ctx, &flexiqv1.CreateTokenRequest{
		Namespace: namespace, Scopes: []string{"produce", "work", "inspect", "admin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if server == "" {
		c, err := readCredentials(credentialsFile(dir))
		if err != nil {
			t.Fatal(err)
		}
		server = c.NATSURL
	}
	return dialAs(t, server, made.GetToken()), made.GetToken()
}

// dialAs connects with a token.
func dialAs(t *testing.T, server, token string) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Server: server, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// limit sets a namespace's quota.
func limit(t *testing.T, c *client.Client, q *flexiqv1.NamespaceQuota) {
	t.Helper()
	if _, err := c.Admin().SetQuota(t.Context(), &flexiqv1.SetQuotaRequest{Quota: q}); err != nil {
		t.Fatal(err)
	}
}

// holds checks a namespace's counts: pending, running, archived, dead.
func holds(t *testing.T, c *client.Client, pending, running, archived, dead int64) {
	t.Helper()
	u, err := c.Admin().GetUsage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if u.GetPending() != pending || u.GetRunning() != running || u.GetArchived() != archived || u.GetDead() != dead {
		t.Errorf("the namespace holds %d pending, %d running, %d archived, %d dead; want %d, %d, %d, %d",
			u.GetPending(), u.GetRunning(), u.GetArchived(), u.GetDead(), pending, running, archived, dead)
	}
}

// jobs makes n jobs alike.
func jobs(n int) []client.Job {
	out := make([]client.Job, n)
	for i := range out {
		out[i] = client.Job{Task: "work", Args: i}
	}
	return out
}

// TestTheWholePathOnEveryBackend takes jobs from enqueue to archive, with a
// refusal on the way, over each store that flexiqd knows.
func TestTheWholePathOnEveryBackend(t *testing.T) {
	eachStore(t, func(t *testing.T, s kept) {
		d, stop := inProcessLogging(t, io.Discard, s.args...)
		wholePath(t, dial(t, d.opts.DataDir, "default", ""))
		stop()
		checkCounts(t, s.opts)
	})
}

func wholePath(t *testing.T, c *client.Client) {
	t.Helper()
	const most = 20
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(most), MaxRunning: proto.Int64(3)})
	if _, err := c.EnqueueBatch(ctx, jobs(most)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Enqueue(ctx, client.Job{Task: "work"})
	if want := "queue 'default' is full: 20 pending >= max_pending 20"; !fault.Is(err, fault.QueueFull) || fault.Of(err).Message != want {
		t.Errorf("one more is %v, want %q", err, want)
	}
	drain(t, c, nil)
	holds(t, c, 0, 0, most, 0)
}

// drain runs the jobs of a namespace until none is left for a second.
func drain(t *testing.T, c *client.Client, do func(*client.Task) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Patience)
	defer cancel()
	w, err := client.NewWorker(client.WorkerOptions{Slots: 10, Drain: true}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.HandleAll(func(_ context.Context, task *client.Task) error {
		if do == nil {
			return nil
		}
		return do(task)
	})
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
}
