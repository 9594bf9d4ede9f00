package config

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"flexiq/pkg/events"
	"flexiq/pkg/quota"
)

// watchTimeout bounds a look at namespaces.
const watchTimeout = 5 * time.Second

// watched reports whether the use of a limit is told at its marks. A rate's
// bucket is emptied and filled by every burst; its refusals are told.
func watched(field string) bool { return field != quota.EnqueueRate }

// watchMarks tells of limits whose use crosses a mark, until ctx ends. It looks
// once a second at the namespaces in which something moved, as far as somebody
// hears it.
func (s *Service) watchMarks(ctx context.Context) {
	if s.deps.Events == nil {
		return
	}
	if !s.adoptMarks(ctx) {
		return
	}
	tick := time.NewTicker(markEvery)
	defer tick.Stop()
	for {
		s.markRound(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// adoptMarks takes what limits have reached already as told: a process that
// starts does not tell of it again. It reports false when ctx ended.
func (s *Service) adoptMarks(ctx context.Context) bool {
	for after := ""; ; {
		next, err := s.adoptPage(ctx, after)
		switch {
		case err == nil && next == "":
			return true
		case err == nil:
			after = next
			continue
		}
		s.deps.Log.Debug().Err(err).Msg("the use of limits could not be read")
		wait := time.NewTimer(markEvery)
		select {
		case <-ctx.Done():
			wait.Stop()
			return false
		case <-wait.C:
		}
	}
}

func (s *Service) adoptPage(ctx context.Context, after string) (next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	page, err := s.store.Namespaces(ctx, after, markMost)
	if err != nil || len(page.Items) == 0 {
		return page.Next, err
	}
	all, err := s.views(ctx, page.Items)
	if err != nil {
		return "", err
	}
	for _, v := range all {
		s.board.look(v, time.Now())
	}
	return page.Next, nil
}

// markRound looks at what moved, and tells the other processes.
func (s *Service) markRound(ctx context.Context, now time.Time) {
	var names []string
	for _, ns := range s.board.round(now) {
		if s.deps.Events.Wanted(ns, events.QuotaThreshold) {
			names = append(names, ns)
		}
	}
	changed := map[string]reached{}
	for part := range slices.Chunk(names, 500) {
		maps.Copy(changed, s.lookAt(ctx, part, now))
	}
	for _, text := range s.board.reports(changed) {
		s.deps.Bus.PublishMarks(text)
	}
}

func (s *Service) lookAt(ctx context.Context, names []string, now time.Time) map[string]reached {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	all, err := s.views(ctx, names)
	if err != nil {
		s.deps.Log.Debug().Err(err).Msg("the use of limits could not be read")
		for _, ns := range names {
			s.board.moved(ns) // later
		}
		return nil
	}
	changed := map[string]reached{}
	for _, v := range all {
		crossed, after := s.board.look(v, now)
		for _, c := range crossed {
			s.tellMark(v.usage.Namespace, c)
		}
		if after != nil {
			changed[v.usage.Namespace] = after
		}
	}
	return changed
}

func (s *Service) tellMark(ns string, c crossing) {
	direction := "down"
	if c.up {
		direction = "up"
	}
	s.deps.Events.Tell(events.Event{Namespace: ns, Type: events.QuotaThreshold, Details: map[string]string{
		events.KeyLimit: c.field, events.KeyCap: strconv.FormatInt(c.limit, 10), events.KeyCurrent: strconv.FormatInt(c.current, 10),
		events.KeyThreshold: strconv.FormatInt(c.mark, 10), events.KeyDirection: direction,
	}})
}

// hearMarks takes a report of a process that watches.
func (s *Service) hearMarks(data []byte) {
	var r markReport
	if err := json.Unmarshal(data, &r); err != nil {
		s.metrics.badReports.Inc()
		s.deps.Log.Debug().Err(fmt.Errorf("report of marks: %w", err)).Msg("bad report")
		return
	}
	s.board.hear(r, time.Now())
}
