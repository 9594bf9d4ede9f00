package admission

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"flexiq/pkg/bus"
	"flexiq/pkg/fault"
	"flexiq/pkg/job"
	"flexiq/pkg/schedule"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

const (
	// triggerAge is how long a trigger, or its absence, is believed.
	triggerAge = 2 * time.Second
	// mostTriggers bounds how many are remembered, misses included.
	mostTriggers = 10_000
	// messagesAtOnce bounds the messages of triggers that are being decided: the
	// plain ones together, and those of each durable.
	messagesAtOnce = 64
	// triggerTimeout bounds the decision of one message.
	triggerTimeout = 20 * time.Second
)

// Messages brings the messages on the subjects of triggers.
type Messages interface {
	OnTriggers(fn func(bus.TriggerMessage)) (stop func(), err error)
	ReadTrigger(ctx context.Context, stream, namespace, name string, fn func(bus.TriggerMessage)) (stop func(), err error)
	DropTrigger(ctx context.Context, stream, namespace, name string) error
}

// triggerKey names a trigger.
type triggerKey struct{ ns, name string }

// knownTriggers remembers triggers for two seconds.
type knownTriggers struct {
	store store.Triggers
	mu    sync.Mutex
	all   map[triggerKey]knownTrigger
}

type knownTrigger struct {
	at      time.Time
	trigger *store.Trigger // nil: there is none
}

// get finds a trigger; NOT_FOUND.
func (k *knownTriggers) get(ctx context.Context, key triggerKey) (*store.Trigger, error) {
	now := time.Now()
	k.mu.Lock()
	known, ok := k.all[key]
	k.mu.Unlock()
	if !ok || now.Sub(known.at) >= triggerAge {
		found, err := k.store.Trigger(ctx, key.ns, key.name)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return nil, err
		}
		known = knownTrigger{at: now, trigger: found}
		k.mu.Lock()
		if len(k.all) >= mostTriggers {
			clear(k.all)
		}
		k.all[key] = known
		k.mu.Unlock()
	}
	if known.trigger == nil {
		return nil, fault.Missing("trigger")
	}
	return known.trigger, nil
}

// pull fires a trigger with a body. The id is derived from the cause where that
// may come again; signed is the request's signature, nil when it has none.
func (s *Service) pull(ctx context.Context, t *store.Trigger, id string, body []byte, signed *store.Signature) (store.Outcome, error) {
	spec, err := wire.TriggerSpec(t.Job, id, body, s.cfg.MaxPayload)
	if err != nil {
		call := innerCall(t.Namespace, "trigger:"+t.Name, t.UpdatedBy, job.Spec{})
		s.refuse(t.Namespace, &call, err)
		return store.Outcome{}, err
	}
	call := innerCall(t.Namespace, "trigger:"+t.Name, t.UpdatedBy, spec)
	call.Signature = signed
	return s.decide(ctx, call)
}

// hearTriggers takes the messages of triggers until ctx ends.
func (s *Service) hearTriggers(ctx context.Context) error {
	var plain errgroup.Group
	plain.SetLimit(messagesAtOnce)
	stop, err := s.messages.OnTriggers(func(m bus.TriggerMessage) {
		if !plain.TryGo(func() error { s.hearPlain(ctx, m); return nil }) {
			s.metrics.droppedMessages.Inc()
		}
	})
	if err != nil {
		return err
	}
	s.readStreams(ctx)
	stop()
	return plain.Wait()
}

// hearPlain decides a plain message. Nobody can be told of a refusal: it is counted.
func (s *Service) hearPlain(ctx context.Context, m bus.TriggerMessage) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), triggerTimeout)
	defer cancel()
	t, err := s.triggers.get(ctx, triggerKey{m.Namespace, m.Name})
	switch {
	case fault.Is(err, fault.NotFound), err == nil && t.Secret != nil:
		s.metrics.droppedMessages.Inc()
		return
	case err != nil:
		call := innerCall(m.Namespace, "trigger:"+m.Name, "", job.Spec{})
		s.refuse(m.Namespace, &call, err)
		return
	case t.Stream != "":
		return // it is read from its stream
	}
	id, err := uuid.NewV7()
	if err == nil {
		_, err = s.pull(ctx, t, id.String(), m.Data, nil)
	}
	if err != nil {
		s.log.Debug().Str("namespace", m.Namespace).Str("reason", string(fault.Of(err).Reason)).Msg("message of a trigger refused")
	}
}

// reading is a durable trigger being read.
type reading struct {
	stream string
	stop   func()
	seen   bool // in the last round
}

// readStreams keeps a reader for each durable trigger of the store.
func (s *Service) readStreams(ctx context.Context) {
	readers := make(map[triggerKey]*reading)
	tick := time.NewTicker(triggerAge)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := s.matchReaders(ctx, readers); err != nil && ctx.Err() == nil {
			s.warned.Do(func() { s.log.Warn().Err(err).Msg("the triggers of streams could not be read") })
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for _, r := range readers {
		r.stop()
	}
}

// matchReaders starts readers for new triggers and stops those of triggers that are gone.
func (s *Service) matchReaders(ctx context.Context, readers map[triggerKey]*reading) error {
	for _, r := range readers {
		r.seen = false
	}
	for after := ""; ; {
		page, err := s.triggers.store.StreamTriggers(ctx, after, 500)
		if err != nil {
			return err
		}
		for _, t := range page.Items {
			key := triggerKey{t.Namespace, t.Name}
			if r := readers[key]; r != nil && r.stream == t.Stream {
				r.seen = true
				continue
			}
			s.dropReader(ctx, readers, key)
			stop, err := s.read(ctx, t)
			if err != nil {
				s.log.Warn().Err(err).Str("namespace", t.Namespace).Msg("the stream of a trigger cannot be read")
				continue
			}
			readers[key] = &reading{stream: t.Stream, stop: stop, seen: true}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	for key, r := range readers {
		if !r.seen {
			s.dropReader(ctx, readers, key)
		}
	}
	return nil
}

// dropReader ends the reading of a trigger that is gone or reads another stream.
func (s *Service) dropReader(ctx context.Context, readers map[triggerKey]*reading, key triggerKey) {
	r := readers[key]
	if r == nil {
		return
	}
	r.stop()
	delete(readers, key)
	if err := s.messages.DropTrigger(ctx, r.stream, key.ns, key.name); err != nil {
		s.log.Warn().Err(err).Str("namespace", key.ns).Msg("the consumer of a trigger that is gone stays")
	}
}

func (s *Service) read(ctx context.Context, t store.Trigger) (stop func(), err error) {
	var deciding errgroup.Group
	deciding.SetLimit(messagesAtOnce)
	end, err := s.messages.ReadTrigger(ctx, t.Stream, t.Namespace, t.Name, func(m bus.TriggerMessage) {
		deciding.Go(func() error { s.hearDurable(ctx, m); return nil })
	})
	if err != nil {
		return nil, err
	}
	return func() {
		end()
		_ = deciding.Wait() // none returns an error
	}, nil
}

// hearDurable decides a message of a stream. It is acknowledged when its job is
// written, and kept for later when that was refused, or when the trigger is not
// known: it may be newer than what is remembered, and one that is gone takes its
// consumer with it.
func (s *Service) hearDurable(ctx context.Context, m bus.TriggerMessage) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), triggerTimeout)
	defer cancel()
	err := s.pullDurable(ctx, m)
	switch {
	case err == nil, fault.Is(err, fault.IDConflict): // the first giving out of it made its job
	case fault.Is(err, fault.InvalidRequest), fault.Is(err, fault.PayloadTooLarge):
		s.metrics.droppedMessages.Inc() // it can never pass
		s.log.Warn().Err(err).Str("namespace", m.Namespace).Uint64("sequence", m.Sequence).Msg("message of a trigger dropped")
	default:
		if err := m.Retry(schedule.Pause(int64(min(m.Delivered, 64)))); err != nil {
			s.log.Debug().Err(err).Msg("a message waits for the end of its time")
		}
		return
	}
	if err := m.Ack(ctx); err != nil {
		s.log.Debug().Err(err).Msg("a message was not acknowledged: it comes again and changes nothing")
	}
}

func (s *Service) pullDurable(ctx context.Context, m bus.TriggerMessage) error {
	t, err := s.triggers.get(ctx, triggerKey{m.Namespace, m.Name})
	if err != nil {
		return err
	}
	id := derivedID(m.Time, "stream", m.Namespace, m.Name, m.Stream, m.Time.Format(time.RFC3339Nano), string(binarySequence(m.Sequence)))
	_, err = s.pull(ctx, t, id, m.Data, nil)
	return err
}
