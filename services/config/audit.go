package config

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/quota"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// Kinds of targets in the audit trail.
const (
	targetNamespace    = "namespace"    // a namespace's quota; the target is its name
	targetInstallation = "installation" // the default quota; the target is "quota"
	targetToken        = "token"        // the target is the token's id
	targetSchedule     = "schedule"     // the target is its name
	targetTrigger      = "trigger"      // the target is its name
	targetQueue        = "queue"        // a queue's override; the target is its name
	targetTask         = "task"         // a task's override; the target is its name
	targetDeadLetters  = "dead_letters" // the target is an id, or says which they are
)

const outcomeOK = "ok"

// auditTimeout bounds the record of a refusal, which is written although the
// caller may be gone.
const auditTimeout = 5 * time.Second

// message is a protobuf message by its struct type.
type message[T any] interface {
	*T
	proto.Message
}

// write binds a method that changes something. What the store did it records
// itself; whatever is refused, by the door or by the handler, is recorded here.
func write[Req, Res any, PReq message[Req], PRes message[Res]](s *Service, name string, do func(context.Context, *Req) (*Res, error)) rpc.Method {
	m, _ := auth.MethodNamed(name)
	return rpc.Unary[Req, Res, PReq, PRes](name, func(ctx context.Context, req *Req) (*Res, error) {
		res, err := do(ctx, req)
		if err != nil {
			s.refused(ctx, name, PReq(req), err)
		} else if !dryRun(PReq(req)) {
			s.metrics.writes.WithLabelValues(m.Verb, outcomeOK).Inc()
		}
		return res, err
	}, rpc.OnRefused(s.refused))
}

func dryRun(req proto.Message) bool {
	d, ok := req.(interface{ GetDryRun() bool })
	return ok && d.GetDryRun()
}

// recorded is an error whose record is written already.
type recorded struct{ error }

func (r recorded) Unwrap() error { return r.error }

// refused records a write that was refused. req is nil when the door could not
// decode it. A write that failed for want of the store or of time was not
// refused, and a dry run is no write.
func (s *Service) refused(ctx context.Context, method string, req proto.Message, err error) {
	m, ok := auth.MethodNamed(method)
	if !ok || dryRun(req) {
		return
	}
	reason := fault.Of(err).Reason
	s.metrics.writes.WithLabelValues(m.Verb, string(reason)).Inc()
	switch reason {
	case fault.StorageUnavailable, fault.Overloaded, fault.DeadlineExceeded, fault.Cancelled:
		return
	}
	if errors.As(err, &recorded{}) {
		return
	}
	r := refusedRecord(ctx, m.Verb, req)
	r.Outcome = string(reason)
	var c conflict
	if errors.As(err, &c) {
		r.Old, r.Revision = string(c.raw), c.revision
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	if err := s.store.Audit(ctx, r); err != nil {
		s.metrics.auditFailures.Inc()
		s.deps.Log.Error().Err(err).Str("operation", m.Verb).Str("token", r.TokenID).Str("outcome", r.Outcome).
			Msg("a refused write could not be recorded")
	}
}

// record begins a record of what the caller does.
func record(ctx context.Context, operation string) store.Record {
	id := auth.From(ctx)
	return store.Record{
		Namespace: id.Namespace,
		TokenID:   id.AuditTokenID(),
		ActingAs:  id.AuditActingAs(),
		Door:      auth.Door(ctx),
		Operation: operation,
	}
}

// quotaRecord is the record of a quota write. A platform token can only mean
// the default quota.
func quotaRecord(ctx context.Context, operation string) store.Record {
	r := record(ctx, operation)
	if r.TargetKind, r.Target = targetNamespace, r.Namespace; r.Namespace == "" {
		r.TargetKind, r.Target = targetInstallation, "quota"
	}
	return r
}

// tokenRecord is the record of a token write, in the trail of the namespace
// that the token belongs to.
func tokenRecord(ctx context.Context, operation, ns, target string) store.Record {
	r := record(ctx, operation)
	r.Namespace, r.TargetKind, r.Target = ns, targetToken, target
	return r
}

// refusedRecord names the target before anything of the request was checked,
// and keeps what was asked for. A request for somebody else's object stays in
// the caller's own trail.
func refusedRecord(ctx context.Context, operation string, req proto.Message) store.Record {
	asked := func(ns string) string {
		if auth.From(ctx).Has(auth.Platform) && namespace.Check(ns) == nil {
			return ns
		}
		return auth.From(ctx).Namespace
	}
	var r store.Record
	switch req := req.(type) {
	case *flexiqv1.CreateTokenRequest:
		r = tokenRecord(ctx, operation, asked(req.GetNamespace()), "")
		r.New = tokenValue(req.GetNamespace(), req.GetScopes(), req.GetName(), time.Time{})
	case *flexiqv1.RevokeTokenRequest:
		r = tokenRecord(ctx, operation, asked(req.GetNamespace()), clip(req.GetId()))
	case *flexiqv1.ExchangeTokenRequest:
		r = tokenRecord(ctx, operation, asked(req.GetNamespace()), "")
	case *flexiqv1.SetQuotaRequest:
		r = quotaRecord(ctx, operation)
		r.New = quotaValue(req.GetQuota(), nil)
	case *flexiqv1.EditQuotaRequest:
		r = quotaRecord(ctx, operation)
		r.New = quotaValue(req.GetQuota(), req.GetUnset())
	case *flexiqv1.DeleteDeadLettersRequest:
		r = lettersRecord(ctx, operation, chosen{ids: req.GetIds(), asked: req.GetFilter()})
	case *flexiqv1.ReplayDeadLettersRequest:
		r = lettersRecord(ctx, operation, chosen{ids: req.GetIds(), asked: req.GetFilter()})
	case *flexiqv1.PutSettingRequest:
		r = refusedSetting(ctx, operation, req.GetKey(), req.GetValue())
	case *flexiqv1.DeleteSettingRequest:
		r = refusedSetting(ctx, operation, req.GetKey(), "")
	case *flexiqv1.SetOverrideRequest:
		r = overrideRecord(ctx, operation, req.Queue, req.Task)
		r.New = new(askedOverride(req)).JSON()
	case *flexiqv1.ClearOverrideRequest:
		r = overrideRecord(ctx, operation, req.Queue, req.Task)
	case *flexiqv1.DeleteNamespaceRequest:
		r = record(ctx, operation)
		r.TargetKind, r.Target = targetNamespace, clip(req.GetNamespace())
	case interface{ GetName() string }: // of a schedule or a trigger
		r = producerRecord(ctx, operation, targetSchedule, req.GetName())
		if strings.HasSuffix(operation, "-trigger") {
			r.TargetKind = targetTrigger
		}
	default: // a clear, or a body that could not be read
		r = quotaRecord(ctx, operation)
		if isTokenVerb(operation) {
			r = tokenRecord(ctx, operation, r.Namespace, "")
		}
		if isLetterVerb(operation) {
			r = lettersRecord(ctx, operation, chosen{})
		}
		if operation == "set-override" || operation == "clear-override" {
			r = overrideRecord(ctx, operation, nil, nil)
		}
	}
	return r
}

func isTokenVerb(operation string) bool {
	switch operation {
	case "create-token", "revoke-token", "exchange-token":
		return true
	}
	return false
}

func isLetterVerb(operation string) bool {
	return operation == "delete-dead-letters" || operation == "replay-dead-letters"
}

// clip keeps a caller's text, which nothing has checked yet, to a sane length.
func clip(s string) string {
	const most = 64
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// nameOrClip is a name as it is, and anything else to a sane length.
func nameOrClip(s string) string {
	if namespace.Check(s) == nil {
		return s
	}
	return clip(s)
}

// quotaValue writes a quota as it was asked for, wrong values included.
func quotaValue(q *flexiqv1.NamespaceQuota, unset []string) string {
	if q == nil {
		q = &flexiqv1.NamespaceQuota{}
	}
	return value(struct {
		MaxPending      *int64   `json:"max_pending,omitempty"`
		OnExcess        *string  `json:"on_excess,omitempty"`
		EnqueueRate     *string  `json:"enqueue_rate,omitempty"`
		MaxRunning      *int64   `json:"max_running,omitempty"`
		MaxArchivedRows *int64   `json:"max_archived_rows,omitempty"`
		MaxDeadRows     *int64   `json:"max_dead_rows,omitempty"`
		Unset           []string `json:"unset,omitempty"`
	}{q.MaxPending, q.OnExcess, q.EnqueueRate, q.MaxRunning, q.MaxArchivedRows, q.MaxDeadRows, unset})
}

// tokenValue writes what a token is, without its secret.
func tokenValue(ns string, scopes []string, name string, expires time.Time) string {
	v := struct {
		Namespace string     `json:"namespace,omitempty"`
		Scopes    []string   `json:"scopes"`
		Name      string     `json:"name,omitempty"`
		ExpiresAt *time.Time `json:"expires_at,omitempty"`
	}{Namespace: ns, Scopes: scopes, Name: name}
	if !expires.IsZero() {
		v.ExpiresAt = &expires
	}
	return value(v)
}

// value writes a value of a record as JSON. One that is larger than any
// document may be is left out: the trail is no place to store things.
func value(v any) string {
	text, err := json.Marshal(v)
	if err != nil || len(text) > quota.MaxDocument {
		return ""
	}
	return string(text)
}

func (s *Service) listAudit(ctx context.Context, req *flexiqv1.ListAuditRequest) (*flexiqv1.ListAuditResponse, error) {
	size, after, err := page("audit", req)
	if err != nil {
		return nil, err
	}
	f := store.AuditFilter{Kind: req.GetKind()}
	if err := wire.FilterName("kind", f.Kind); err != nil {
		return nil, err
	}
	if req.Since != nil {
		if f.Since, err = wire.Time("since", req.Since); err != nil {
			return nil, err
		}
	}
	// A platform token has the trail of the installation, whose name is empty.
	records, err := s.store.ListAudit(ctx, auth.From(ctx).Namespace, f, after, size)
	if err != nil {
		return nil, err
	}
	res := &flexiqv1.ListAuditResponse{NextPageToken: wire.PageToken("audit", records.Next)}
	for _, r := range records.Items {
		res.Records = append(res.Records, &flexiqv1.AuditRecord{
			Time: wire.Stamp(r.Time), TokenId: r.TokenID, ActingAs: r.ActingAs, Door: r.Door, Operation: r.Operation,
			TargetKind: r.TargetKind, Target: r.Target, Outcome: r.Outcome,
			Old: present(r.Old), New: present(r.New), Revision: r.Revision,
		})
	}
	return res, nil
}

// present is nil for an empty text.
func present(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
