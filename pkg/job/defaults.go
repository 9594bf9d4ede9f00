package job

import (
	"time"

	"flexiq/pkg/fault"
)

// Option is a set of options of a [Spec].
type Option uint8

// The options for which an operator may set defaults.
const (
	OptionMaxAttempts Option = 1 << iota
	OptionTimeout
	OptionPriority
)

// Defaults stand in the place of the usual defaults of some options. A nil field
// sets nothing.
type Defaults struct {
	MaxAttempts *int32
	Timeout     *time.Duration
	Priority    *int32
}

// Check refuses what no job may have. The error names the field.
func (d Defaults) Check() error {
	if n := d.MaxAttempts; n != nil {
		if err := checkMaxAttempts("max_attempts", *n); err != nil {
			return err
		}
	}
	if t := d.Timeout; t != nil {
		if err := checkTimeout("timeout", *t); err != nil {
			return err
		}
	}
	if p := d.Priority; p != nil {
		return checkPriority("priority", *p)
	}
	return nil
}

// Or is d, with o where d sets nothing.
func (d Defaults) Or(o Defaults) Defaults {
	if d.MaxAttempts == nil {
		d.MaxAttempts = o.MaxAttempts
	}
	if d.Timeout == nil {
		d.Timeout = o.Timeout
	}
	if d.Priority == nil {
		d.Priority = o.Priority
	}
	return d
}

// Default gives the options that the caller left open the values of d, or where
// it sets nothing the usual ones. What the caller chose stays. It may be repeated
// with other defaults: the last ones count.
func (s *Spec) Default(d Defaults) {
	d = d.Or(usual)
	if s.Open&OptionMaxAttempts != 0 {
		s.MaxAttempts = *d.MaxAttempts
	}
	if s.Open&OptionTimeout != 0 {
		s.Timeout = *d.Timeout
	}
	if s.Open&OptionPriority != 0 {
		s.Priority = *d.Priority
	}
}

var usual = Defaults{MaxAttempts: new(int32(DefaultMaxAttempts)), Timeout: new(DefaultTimeout), Priority: new(int32(0))}

func checkMaxAttempts(field string, n int32) error {
	if n < 1 || n > MaxMaxAttempts {
		return fault.Invalid(field, "must be from 1 to %d, got %d", MaxMaxAttempts, n)
	}
	return nil
}

func checkTimeout(field string, t time.Duration) error {
	if t < MinTimeout || t > MaxTimeout {
		return fault.Invalid(field, "must be from %s to %s, got %s", MinTimeout, MaxTimeout, t)
	}
	return nil
}

func checkPriority(field string, p int32) error {
	if p < MinPriority || p > MaxPriority {
		return fault.Invalid(field, "must be from %d to %d, got %d", MinPriority, MaxPriority, p)
	}
	return nil
}
