package redis

import (
	"context"
	"errors"

	"flexiq/pkg/store/migration"
)

// formats are the steps of the format, as migrations are those of a schema. They
// change no key: programs write new keys in the newest format that all may read.
var formats = migration.Steps{{Version: formatNow, Oldest: formatNow, Name: "initial", Reason: "everything starts here."}}

// readFormat reads the format of the store and the oldest one that a program
// must know; 0 for none. With first it makes an empty database a store.
func (s *Store) readFormat(ctx context.Context, first int) (found, oldest int64, err error) {
	c := s.on(installation, formatScript, first)
	if err := s.run(ctx, once, c); err != nil {
		return 0, 0, err
	}
	r := c.list()
	return r.int(), r.int(), nil
}

// SchemaStatus tells which format the store at a URL has. It changes nothing.
func SchemaStatus(ctx context.Context, url string) (migration.Status, error) {
	s := &Store{timeout: defaultTimeout}
	own, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var err error
	if s.db, err = connect(own, url, 1); err != nil {
		return migration.Status{}, s.fail(ctx, "open", err)
	}
	found, oldest, err := s.readFormat(own, 0)
	if err := errors.Join(err, s.Close()); err != nil {
		return migration.Status{}, s.fail(ctx, "format", err)
	}
	return formats.Status(found, oldest), nil
}

// MigrateDown refuses: a format has no step that could be taken back.
func MigrateDown(context.Context, string) (migration.Step, error) {
	return migration.Step{}, errors.New("redis: the format of a store has no step to take back")
}
