package config

import (
	"context"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

// Bounds of a trigger's secret, in bytes.
const (
	leastSecret = 16
	mostSecret  = 256
)

func (s *Service) putTrigger(ctx context.Context, req *flexiqv1.PutTriggerRequest) (*flexiqv1.PutTriggerResponse, error) {
	ns, err := named(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	t := store.Trigger{Namespace: ns, Name: req.GetName(), UpdatedBy: auth.From(ctx).AuditTokenID()}
	switch over, n := req.GetHttp(), req.GetNats(); {
	case (over == nil) == (n == nil):
		return nil, fault.Invalid("http", "exactly one of http and nats must be given")
	case over != nil:
		if l := len(over.GetSecret()); l < leastSecret || l > mostSecret {
			return nil, fault.Invalid("http.secret", "must be from %d to %d bytes, got %d", leastSecret, mostSecret, l)
		}
		t.Secret = []byte(over.GetSecret())
	default:
		t.Stream = n.GetDurableStream()
	}
	if t.Job, err = wire.EncodeTemplate(req.GetJob(), s.cfg.MaxPayload); err != nil {
		return nil, err
	}
	if t.Stream != "" {
		if err := s.deps.Bus.CheckTriggerStream(ctx, t.Stream, ns); err != nil {
			return nil, err
		}
	}
	r := producerRecord(ctx, "put-trigger", targetTrigger, t.Name)
	r.New = triggerValue(t)
	if err := s.store.PutTrigger(ctx, t, r); err != nil {
		return nil, err
	}
	t.UpdatedAt = instant()
	return &flexiqv1.PutTriggerResponse{Trigger: triggerMessage(t)}, nil
}

// triggerValue writes a trigger as the trail keeps it: without secret and payload.
func triggerValue(t store.Trigger) string {
	return value(struct {
		HTTP   bool   `json:"http"`
		Stream string `json:"durable_stream,omitempty"`
	}{t.Secret != nil, t.Stream})
}

func triggerMessage(t store.Trigger) *flexiqv1.Trigger {
	m := &flexiqv1.Trigger{Name: t.Name, UpdatedAt: wire.Stamp(t.UpdatedAt), UpdatedBy: t.UpdatedBy}
	if t.Secret != nil {
		m.Http, m.Address = &flexiqv1.HttpTrigger{}, wire.TriggerPath(t.Namespace, t.Name)
	} else {
		m.Nats, m.Address = &flexiqv1.NatsTrigger{DurableStream: t.Stream}, auth.TriggerSubject(t.Namespace, t.Name)
	}
	m.Job, _ = wire.DecodeTemplate(t.Job) // what cannot be read is shown without its job
	return m
}

func (s *Service) deleteTrigger(ctx context.Context, req *flexiqv1.DeleteTriggerRequest) (*flexiqv1.DeleteTriggerResponse, error) {
	ns, err := named(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if err := s.store.DeleteTrigger(ctx, ns, req.GetName(), producerRecord(ctx, "delete-trigger", targetTrigger, req.GetName())); err != nil {
		return nil, err
	}
	return &flexiqv1.DeleteTriggerResponse{}, nil
}

func (s *Service) listTriggers(ctx context.Context, req *flexiqv1.ListTriggersRequest) (*flexiqv1.ListTriggersResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	size, after, err := page("triggers", req)
	if err != nil {
		return nil, err
	}
	found, err := s.store.ListTriggers(ctx, ns, after, size)
	if err != nil {
		return nil, err
	}
	res := &flexiqv1.ListTriggersResponse{NextPageToken: wire.PageToken("triggers", found.Next)}
	for _, one := range found.Items {
		res.Triggers = append(res.Triggers, triggerMessage(one))
	}
	return res, nil
}
