package config

import (
	"context"
	"strings"
	"unicode/utf8"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/store"
	"flexiq/pkg/wire"
)

const targetSetting = "setting" // the target is its key

func settingRecord(ctx context.Context, operation, key string) store.Record {
	r := record(ctx, operation)
	r.TargetKind, r.Target = targetSetting, key
	return r
}

// known is the caller's namespace, for a key that a setting may have. Any other
// is not there, like one that nobody stored.
func known(ctx context.Context, key string) (string, error) {
	ns, err := tenant(ctx)
	if err == nil && !store.CheckSettingKey(key) {
		err = fault.Missing("setting")
	}
	return ns, err
}

func (s *Service) getSetting(ctx context.Context, req *flexiqv1.GetSettingRequest) (*flexiqv1.GetSettingResponse, error) {
	ns, err := known(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	v, err := s.store.Setting(ctx, ns, req.GetKey())
	if err != nil {
		return nil, err
	}
	return &flexiqv1.GetSettingResponse{
		Key: v.Key, Value: v.Value, Revision: v.Revision, UpdatedAt: wire.Stamp(v.UpdatedAt), UpdatedBy: v.UpdatedBy,
	}, nil
}

func (s *Service) listSettings(ctx context.Context, req *flexiqv1.ListSettingsRequest) (*flexiqv1.ListSettingsResponse, error) {
	const list = "settings"
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	size, after, err := page(list, req)
	if err != nil {
		return nil, err
	}
	settings, err := s.store.ListSettings(ctx, ns, after, size)
	if err != nil {
		return nil, err
	}
	res := &flexiqv1.ListSettingsResponse{NextPageToken: wire.PageToken(list, settings.Next)}
	for _, v := range settings.Items {
		res.Settings = append(res.Settings, &flexiqv1.Setting{
			Key: v.Key, Value: v.Value, Revision: v.Revision, UpdatedAt: wire.Stamp(v.UpdatedAt), UpdatedBy: v.UpdatedBy,
		})
	}
	return res, nil
}

func (s *Service) putSetting(ctx context.Context, req *flexiqv1.PutSettingRequest) (*flexiqv1.PutSettingResponse, error) {
	ns, err := tenant(ctx)
	if err != nil {
		return nil, err
	}
	switch key, value := req.GetKey(), req.GetValue(); {
	case !store.CheckSettingKey(key):
		return nil, fault.Invalid("key", "must be of the form [a-z0-9][a-z0-9._/-]{0,%d}, got %q", store.MaxSettingKey-1, clip(key))
	case len(value) > store.MaxSetting:
		return nil, fault.Invalid("value", "must be at most %d bytes, got %d", store.MaxSetting, len(value))
	case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
		return nil, fault.Invalid("value", "must be UTF-8 without NUL")
	}
	v, err := s.store.PutSetting(ctx, store.Setting{Namespace: ns, Key: req.GetKey(), Value: req.GetValue()},
		settingRecord(ctx, "put-setting", req.GetKey()))
	if err != nil {
		return nil, err
	}
	return &flexiqv1.PutSettingResponse{
		Key: v.Key, Value: v.Value, Revision: v.Revision, UpdatedAt: wire.Stamp(v.UpdatedAt), UpdatedBy: v.UpdatedBy,
	}, nil
}

func (s *Service) deleteSetting(ctx context.Context, req *flexiqv1.DeleteSettingRequest) (*flexiqv1.DeleteSettingResponse, error) {
	ns, err := known(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	if err := s.store.DeleteSetting(ctx, ns, req.GetKey(), settingRecord(ctx, "delete-setting", req.GetKey())); err != nil {
		return nil, err
	}
	return &flexiqv1.DeleteSettingResponse{}, nil
}

// refusedSetting keeps what was asked for of a setting.
func refusedSetting(ctx context.Context, operation, key, value string) store.Record {
	r := settingRecord(ctx, operation, clip(key))
	if len(value) <= store.MaxSetting {
		r.New = strings.ToValidUTF8(value, "\uFFFD")
	}
	r.Namespace = auth.From(ctx).Namespace
	return r
}
