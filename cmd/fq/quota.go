package main

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/quota"
)

type quotaCmd struct {
	Get   quotaGetCmd   `cmd:"" help:"Show the quota in force."`
	Set   quotaSetCmd   `cmd:"" help:"Replace the whole quota: a limit left out is lifted."`
	Edit  quotaEditCmd  `cmd:"" help:"Change the named limits only."`
	Clear quotaClearCmd `cmd:"" help:"Remove the quota: nothing is limited."`
}

// count is a plain decimal, so that 010 or 0x10 is no surprise.
type count int64

func (c *count) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != string(text) {
		return fmt.Errorf("must be a whole number from 0 to 9223372036854775807, got %q", text)
	}
	*c = count(n)
	return nil
}

func (c *count) ptr() *int64 {
	if c == nil {
		return nil
	}
	return new(int64(*c))
}

// limitFlags are the fields of a quota.
type limitFlags struct {
	MaxPending      *count  `help:"Jobs that may wait, delayed ones included." placeholder:"N"`
	OnExcess        *string `help:"What a call over max_pending or enqueue_rate gets: reject or drop." placeholder:"reject|drop"`
	EnqueueRate     *string `help:"Jobs that may be enqueued per s, m or h, such as 500/s." placeholder:"N/UNIT"`
	MaxRunning      *count  `help:"Jobs that may run at once." placeholder:"N"`
	MaxArchivedRows *count  `help:"Completed and cancelled jobs to keep." placeholder:"N"`
	MaxDeadRows     *count  `help:"Dead letters to keep." placeholder:"N"`
}

func (f limitFlags) quota() *flexiqv1.NamespaceQuota {
	return &flexiqv1.NamespaceQuota{
		MaxPending:      f.MaxPending.ptr(),
		OnExcess:        f.OnExcess,
		EnqueueRate:     f.EnqueueRate,
		MaxRunning:      f.MaxRunning.ptr(),
		MaxArchivedRows: f.MaxArchivedRows.ptr(),
		MaxDeadRows:     f.MaxDeadRows.ptr(),
	}
}

func (f limitFlags) limits() bool {
	return f.MaxPending != nil || f.EnqueueRate != nil || f.MaxRunning != nil || f.MaxArchivedRows != nil || f.MaxDeadRows != nil
}

// writeFlags are those of every change of a quota.
type writeFlags struct {
	IfRevision *count `help:"Only if the quota has this revision; 0: only if there is none." placeholder:"N"`
	Wait       bool   `help:"Return when every process enforces the change, after 5s at most."`
	DryRun     bool   `help:"Change nothing; show the quota as it would be, and what it would refuse and delete now."`
	Default    bool   `help:"The installation's default quota (platform token)."`
}

func (f writeFlags) need() need { return needOf(f.Default) }

func needOf(platform bool) need {
	if platform {
		return ofPlatform
	}
	return ofNamespace
}

type quotaGetCmd struct {
	Default bool `help:"The installation's default quota (platform token)."`
}

func (cmd *quotaGetCmd) Run(s *session) error {
	c, hangUp, err := s.dial(needOf(cmd.Default))
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().GetQuota(s.ctx, &flexiqv1.GetQuotaRequest{Default: cmd.Default})
	if err != nil {
		return err
	}
	return s.printQuota(res)
}

type quotaSetCmd struct {
	limitFlags
	writeFlags
}

func (cmd *quotaSetCmd) Run(s *session) error {
	if !cmd.limits() {
		return usagef("quota set: no limit is given; to lift every limit use: fq quota clear")
	}
	c, hangUp, err := s.dial(cmd.need())
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().SetQuota(s.ctx, &flexiqv1.SetQuotaRequest{
		Quota: cmd.quota(), IfRevision: cmd.IfRevision.ptr(), Wait: cmd.Wait, DryRun: cmd.DryRun, Default: cmd.Default,
	})
	if err != nil {
		return err
	}
	return s.printQuota(res)
}

type quotaEditCmd struct {
	limitFlags
	Unset []string `help:"A field to lift; may be repeated." placeholder:"FIELD"`
	writeFlags
}

func (cmd *quotaEditCmd) Run(s *session) error {
	if !cmd.limits() && cmd.OnExcess == nil && len(cmd.Unset) == 0 {
		return usagef("quota edit: nothing is to be changed; name a limit, or --unset FIELD")
	}
	for i, field := range cmd.Unset {
		cmd.Unset[i] = strings.ReplaceAll(field, "-", "_") // as the flags are spelled
	}
	c, hangUp, err := s.dial(cmd.need())
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().EditQuota(s.ctx, &flexiqv1.EditQuotaRequest{
		Quota: cmd.quota(), Unset: cmd.Unset, IfRevision: cmd.IfRevision.ptr(),
		Wait: cmd.Wait, DryRun: cmd.DryRun, Default: cmd.Default,
	})
	if err != nil {
		return err
	}
	return s.printQuota(res)
}

type quotaClearCmd struct {
	writeFlags
}

func (cmd *quotaClearCmd) Run(s *session) error {
	c, hangUp, err := s.dial(cmd.need())
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().ClearQuota(s.ctx, &flexiqv1.ClearQuotaRequest{
		IfRevision: cmd.IfRevision.ptr(), Wait: cmd.Wait, DryRun: cmd.DryRun, Default: cmd.Default,
	})
	if err != nil {
		return err
	}
	return s.printQuota(res)
}

// quotaResponse is what the answers of all four calls have in common.
type quotaResponse interface {
	proto.Message
	GetQuota() *flexiqv1.NamespaceQuota
	GetInherited() bool
	GetRevision() int64
	GetUpdatedAt() *timestamppb.Timestamp
	GetUpdatedBy() string
}

// printQuota prints the answer. A change that some process does not enforce yet
// stands, and is an error all the same.
func (s *session) printQuota(res quotaResponse) error {
	var enforced *flexiqv1.EnforcedBy
	var would *flexiqv1.QuotaPreview
	if w, ok := res.(interface {
		GetEnforcedBy() *flexiqv1.EnforcedBy
		GetWould() *flexiqv1.QuotaPreview
	}); ok {
		enforced, would = w.GetEnforcedBy(), w.GetWould()
	}
	if s.json() {
		if err := writeJSON(s.out, res); err != nil {
			return err
		}
	} else if err := s.quotaTable(res, enforced, would).write(s.out); err != nil {
		return err
	}
	if lagging := enforced.GetLagging(); len(lagging) > 0 {
		s.remark("the change stands, but is not enforced yet by: %s", strings.Join(lagging, ", "))
		return errTold
	}
	return nil
}

func (s *session) quotaTable(res quotaResponse, enforced *flexiqv1.EnforcedBy, would *flexiqv1.QuotaPreview) *table {
	t := new(table)
	for _, f := range quota.Fields {
		t.row(f, fieldText(res.GetQuota(), would, f))
	}
	t.row("revision", res.GetRevision())
	if res.GetUpdatedAt() != nil {
		t.row("updated", when(res.GetUpdatedAt())+" by "+orDash(res.GetUpdatedBy()))
	}
	if res.GetInherited() {
		t.row("inherited", "yes, the installation's default quota")
	}
	if enforced != nil {
		t.row("enforced", "by "+plural(enforced.GetProcesses(), "process"))
	}
	if would != nil {
		t.row("dry run", "nothing was changed")
		if would.GetInherited() {
			t.row("would inherit", "yes, the installation's default quota")
		}
		for _, o := range would.GetOver() {
			t.row("would refuse", fmt.Sprintf("%s %d, now at %d", o.GetField(), o.GetLimit(), o.GetCurrent()))
		}
		for _, d := range would.GetDelete() {
			t.row("would delete", fmt.Sprintf("%d %s rows", d.GetRows(), d.GetTable()))
		}
	}
	return t
}

// fieldText shows a field, of a dry run as it would be, with what it is now when
// that is something else. A quota that cannot be read is not known.
func fieldText(now *flexiqv1.NamespaceQuota, would *flexiqv1.QuotaPreview, field string) string {
	if would == nil {
		return limitText(now, field)
	}
	text := limitText(would.GetQuota(), field)
	switch {
	case now == nil:
		return text
	case limitText(now, field) != text:
		return text + ", now " + limitText(now, field)
	}
	return text
}

// limitText shows a field of a quota; 0 is a limit, and an absent one none.
func limitText(q *flexiqv1.NamespaceQuota, field string) string {
	number := func(n *int64) string {
		if n == nil {
			return "unlimited"
		}
		return strconv.FormatInt(*n, 10)
	}
	switch field {
	case quota.MaxPending:
		return number(q.MaxPending)
	case quota.MaxRunning:
		return number(q.MaxRunning)
	case quota.MaxArchivedRows:
		return number(q.MaxArchivedRows)
	case quota.MaxDeadRows:
		return number(q.MaxDeadRows)
	case quota.EnqueueRate:
		if q.EnqueueRate == nil {
			return "unlimited"
		}
		return q.GetEnqueueRate()
	}
	if q.OnExcess == nil {
		return string(quota.Reject)
	}
	return q.GetOnExcess()
}
