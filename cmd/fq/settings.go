package main

import (
	"fmt"
	"io"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

type settingsCmd struct {
	Get    settingsGetCmd    `cmd:"" help:"Print the value of a setting."`
	List   settingsListCmd   `cmd:"" help:"List the settings of the namespace."`
	Put    settingsPutCmd    `cmd:"" help:"Write a setting."`
	Delete settingsDeleteCmd `cmd:"" help:"Remove a setting."`
}

type settingsGetCmd struct {
	Key string `arg:"" help:"Its key."`
}

func (cmd *settingsGetCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().GetSetting(s.ctx, cmd.Key)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, res)
	}
	_, err = fmt.Fprintln(s.out, clean(res.GetValue()))
	return err
}

type settingsListCmd struct{ paging }

func (cmd *settingsListCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListSettingsResponse, *flexiqv1.Setting]{
		name:   "settings",
		items:  (*flexiqv1.ListSettingsResponse).GetSettings,
		header: []any{"KEY", "REVISION", "UPDATED", "BY", "VALUE"},
		row: func(v *flexiqv1.Setting) []any {
			return []any{v.GetKey(), v.GetRevision(), when(v.GetUpdatedAt()), orDash(v.GetUpdatedBy()), head(v.GetValue())}
		},
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListSettingsResponse, error) {
		return c.Admin().ListSettings(s.ctx, &flexiqv1.ListSettingsRequest{PageSize: size, PageToken: token})
	})
}

type settingsPutCmd struct {
	Key   string `arg:"" help:"Its key: small letters, digits and . _ / -"`
	Value string `arg:"" help:"Its value, or - to read it from standard input. No place for secrets."`
}

func (cmd *settingsPutCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	value := cmd.Value
	if value == "-" {
		const more = 1 << 20 // than the server takes; it says so
		text, err := io.ReadAll(io.LimitReader(s.in, more))
		if err != nil {
			return err
		}
		value = string(text)
	}
	res, err := c.Admin().PutSetting(s.ctx, cmd.Key, value)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, res)
	}
	_, err = fmt.Fprintf(s.out, "%s is at revision %d\n", clean(res.GetKey()), res.GetRevision())
	return err
}

type settingsDeleteCmd struct {
	Key string `arg:"" help:"Its key."`
}

func (cmd *settingsDeleteCmd) Run(s *session) error {
	c, hangUp, err := s.dial(ofNamespace)
	if err != nil {
		return err
	}
	defer hangUp()
	if err := c.Admin().DeleteSetting(s.ctx, cmd.Key); err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, &flexiqv1.DeleteSettingResponse{})
	}
	_, err = fmt.Fprintf(s.out, "deleted %s\n", clean(cmd.Key))
	return err
}
