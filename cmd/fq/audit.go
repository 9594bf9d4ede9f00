package main

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

type auditCmd struct {
	Kind  string     `help:"Only records about this kind of target, such as namespace or token."`
	Since *time.Time `help:"Only records of this time and later." placeholder:"2030-01-02T15:04:05Z"`
	paging
}

func (cmd *auditCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	req := &flexiqv1.ListAuditRequest{Kind: cmd.Kind}
	if cmd.Since != nil {
		req.Since = timestamppb.New(*cmd.Since)
	}
	l := listing[*flexiqv1.ListAuditResponse, *flexiqv1.AuditRecord]{
		name:   "records",
		items:  (*flexiqv1.ListAuditResponse).GetRecords,
		header: []any{"TIME", "TOKEN", "ACTING AS", "DOOR", "OPERATION", "TARGET", "OUTCOME", "REVISION", "OLD", "NEW"},
		row: func(r *flexiqv1.AuditRecord) []any {
			return []any{
				when(r.GetTime()), r.GetTokenId(), orDash(r.GetActingAs()), r.GetDoor(), r.GetOperation(),
				r.GetTargetKind() + " " + r.GetTarget(), r.GetOutcome(), r.GetRevision(), orDash(r.GetOld()), orDash(r.GetNew()),
			}
		},
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListAuditResponse, error) {
		req.PageSize, req.PageToken = size, token
		return c.Admin().ListAudit(s.ctx, req)
	})
}
