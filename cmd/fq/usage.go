package main

import (
	"fmt"
	"strings"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/quota"
)

type usageCmd struct {
	All bool `help:"All namespaces, the fullest first, without the last minute (platform token)."`
}

// Help is shown by --help.
func (cmd *usageCmd) Help() string {
	return "The counts are of this moment. The last minute is added up from what processes report each second: it is up to two " +
		"seconds late, and begins at nothing when the service config starts."
}

func (cmd *usageCmd) Run(s *session) error {
	if cmd.All {
		return (&namespacesListCmd{Order: "usage"}).Run(s)
	}
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().GetUsage(s.ctx)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, res)
	}
	t := new(table)
	t.row("pending", res.GetPending())
	t.row("running", res.GetRunning())
	t.row("archived", res.GetArchived())
	t.row("dead", deadText(res))
	last := res.GetLastMinute()
	t.row("last minute", fmt.Sprintf("%d admitted, %d rejected, %d shed", last.GetAdmitted(), last.GetRejected(), last.GetShed()))
	if sweep := res.GetLastSweep(); sweep != nil {
		t.row("last sweep", sweepText(sweep))
	}
	t.row("revision", res.GetRevision())
	if res.GetUnreadable() {
		t.row("quota", "UNREADABLE: enqueues fail and nothing starts until it is set or cleared")
	}
	if err := t.write(s.out); err != nil || len(res.GetLimits()) == 0 {
		return err
	}
	fmt.Fprintln(s.out)
	t.row("LIMIT", "VALUE", "NOW", "OVER BY")
	for _, l := range res.GetLimits() {
		if l.GetField() == quota.EnqueueRate { // its current is what is left, not what is used
			t.row(l.GetField(), fmt.Sprintf("%d at once", l.GetLimit()), fmt.Sprintf("%d left", l.GetCurrent()), "-")
			continue
		}
		t.row(l.GetField(), l.GetLimit(), l.GetCurrent(), l.GetOver())
	}
	return t.write(s.out)
}

// plural is a number of things.
func plural[N int | int32 | int64](n N, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// sweepText is what retention did last.
func sweepText(s *flexiqv1.LastSweep) string {
	text := fmt.Sprintf("%s, deleted %d completed, %d cancelled, %d dead, %d shed", when(s.GetTime()),
		s.GetCompleted(), s.GetCancelled(), s.GetDead(), s.GetShed())
	if s.GetRetried()+s.GetBlocked() > 0 {
		text += fmt.Sprintf("; retried %d dead, kept %d", s.GetRetried(), s.GetBlocked())
	}
	if s.GetLeft() {
		text += "; more is left"
	}
	if s.GetSkipped() != "" {
		text += "; skipped: " + s.GetSkipped()
	}
	return text
}

func deadText(u *flexiqv1.GetUsageResponse) string {
	if u.GetShed() == 0 {
		return fmt.Sprint(u.GetDead())
	}
	return fmt.Sprintf("%d, of which %d shed", u.GetDead(), u.GetShed())
}

type namespacesCmd struct {
	List   namespacesListCmd   `cmd:"" help:"List all namespaces with their usage (platform token)."`
	Delete namespacesDeleteCmd `cmd:"" help:"Delete a namespace for good: tokens, jobs, history, quota (platform token)."`
}

type namespacesListCmd struct {
	Order string `help:"By name, or by usage: the fullest first." enum:"name,usage" default:"name"`
	paging
}

func (cmd *namespacesListCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofPlatform)
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListNamespacesResponse, *flexiqv1.NamespaceUsage]{
		name:   "namespaces",
		items:  (*flexiqv1.ListNamespacesResponse).GetNamespaces,
		header: []any{"NAMESPACE", "PENDING", "RUNNING", "ARCHIVED", "DEAD", "SHED", "QUOTA"},
		row: func(n *flexiqv1.NamespaceUsage) []any {
			u, q := n.GetUsage(), "-"
			switch {
			case u.GetUnreadable():
				q = "UNREADABLE"
			case len(u.GetLimits()) > 0:
				q = plural(len(u.GetLimits()), "limit")
			}
			return []any{n.GetNamespace(), u.GetPending(), u.GetRunning(), u.GetArchived(), u.GetDead(), u.GetShed(), q}
		},
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListNamespacesResponse, error) {
		return c.Admin().ListNamespaces(s.ctx, &flexiqv1.ListNamespacesRequest{Order: cmd.Order, PageSize: size, PageToken: token})
	})
}

type namespacesDeleteCmd struct {
	Namespace string `arg:"" help:"The namespace."`
	Confirm   string `help:"The namespace's name once more: what is deleted does not come back." required:"" placeholder:"NAMESPACE"`
}

func (cmd *namespacesDeleteCmd) Run(s *session) error {
	if cmd.Confirm != cmd.Namespace {
		return usagef("--confirm must repeat the name of the namespace")
	}
	c, hangUp, err := s.dial(ofPlatform)
	if err != nil {
		return err
	}
	defer hangUp()
	for {
		res, err := c.Admin().DeleteNamespace(s.ctx, cmd.Namespace)
		switch {
		case err != nil:
			return err
		case res.GetMore():
			continue
		case s.json():
			return writeJSON(s.out, res)
		}
		_, err = fmt.Fprintf(s.out, "deleted %s\n", clean(cmd.Namespace))
		return err
	}
}
