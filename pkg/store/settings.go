package store

import (
	"context"
	"time"
)

// Settings keeps what operators store for a namespace under keys of their own.
// The caller has checked the keys by [CheckSettingKey]; a reserved one cannot be
// spelled, so it is not found, and no listing shows it.
type Settings interface {
	// Setting reads one; NOT_FOUND.
	Setting(ctx context.Context, ns, key string) (Setting, error)
	// PutSetting writes one and the audit record, in one step, and returns it as
	// it now is. Its revision is one more than before, 1 at first.
	PutSetting(ctx context.Context, s Setting, audit Record) (Setting, error)
	// DeleteSetting removes one and writes the audit record, in one step; NOT_FOUND.
	DeleteSetting(ctx context.Context, ns, key string, audit Record) error
	// ListSettings lists a namespace's settings by key, with their values.
	ListSettings(ctx context.Context, ns, after string, limit int) (Page[Setting], error)
}

// Setting is one stored value.
type Setting struct {
	Namespace string
	Key       string
	Value     string // at most [MaxSetting] bytes
	Revision  int64
	UpdatedAt time.Time
	UpdatedBy string // token id, of the audit record
}

// Bounds of a setting.
const (
	MaxSetting    = 16 << 10
	MaxSettingKey = 200
)

// CheckSettingKey reports whether key is one that settings may have:
// [a-z0-9][a-z0-9._/-]{0,199}. No such key has a colon or a capital letter in
// it, so it is never that of a quota or of anything else that is reserved.
func CheckSettingKey(key string) bool {
	if key == "" || len(key) > MaxSettingKey {
		return false
	}
	for i := range len(key) {
		b := key[i]
		plain := b >= 'a' && b <= 'z' || b >= '0' && b <= '9'
		if !plain && (i == 0 || b != '.' && b != '_' && b != '/' && b != '-') {
			return false
		}
	}
	return true
}
