package client

import (
	"context"
	"iter"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

// Admin is the operators' door. Reads need the scope inspect, writes admin,
// and what spans namespaces platform. Reads are repeated while the server is
// unavailable, writes are sent once.
type Admin struct{ c *Client }

// Admin returns the operators' calls.
func (c *Client) Admin() Admin { return Admin{c} }

// GetQuota reads the quota in force. QUOTA_UNREADABLE when it cannot be read.
func (a Admin) GetQuota(ctx context.Context, req *flexiqv1.GetQuotaRequest) (*flexiqv1.GetQuotaResponse, error) {
	return read[flexiqv1.GetQuotaResponse](ctx, a.c, "GetQuota", req)
}

// SetQuota replaces the whole document: a field left out is a limit lifted.
func (a Admin) SetQuota(ctx context.Context, req *flexiqv1.SetQuotaRequest) (*flexiqv1.SetQuotaResponse, error) {
	return write[flexiqv1.SetQuotaResponse](ctx, a.c, "SetQuota", req)
}

// EditQuota changes the named fields only.
func (a Admin) EditQuota(ctx context.Context, req *flexiqv1.EditQuotaRequest) (*flexiqv1.EditQuotaResponse, error) {
	return write[flexiqv1.EditQuotaResponse](ctx, a.c, "EditQuota", req)
}

// ClearQuota removes the document, readable or not.
func (a Admin) ClearQuota(ctx context.Context, req *flexiqv1.ClearQuotaRequest) (*flexiqv1.ClearQuotaResponse, error) {
	return write[flexiqv1.ClearQuotaResponse](ctx, a.c, "ClearQuota", req)
}

// GetUsage counts what the namespace holds and sets it beside its limits.
func (a Admin) GetUsage(ctx context.Context) (*flexiqv1.GetUsageResponse, error) {
	return read[flexiqv1.GetUsageResponse](ctx, a.c, "GetUsage", &flexiqv1.GetUsageRequest{})
}

// ListQueues reads one page of queues.
func (a Admin) ListQueues(ctx context.Context, req *flexiqv1.ListQueuesRequest) (*flexiqv1.ListQueuesResponse, error) {
	return read[flexiqv1.ListQueuesResponse](ctx, a.c, "ListQueues", req)
}

// Queues reads queues page after page. An error ends the sequence.
func (a Admin) Queues(ctx context.Context, req *flexiqv1.ListQueuesRequest) iter.Seq2[*flexiqv1.QueueInfo, error] {
	return pages(ctx, req, a.ListQueues, (*flexiqv1.ListQueuesResponse).GetQueues)
}

// ListWorkers reads one page of workers.
func (a Admin) ListWorkers(ctx context.Context, req *flexiqv1.ListWorkersRequest) (*flexiqv1.ListWorkersResponse, error) {
	return read[flexiqv1.ListWorkersResponse](ctx, a.c, "ListWorkers", req)
}

// Workers reads workers page after page. An error ends the sequence.
func (a Admin) Workers(ctx context.Context, req *flexiqv1.ListWorkersRequest) iter.Seq2[*flexiqv1.WorkerInfo, error] {
	return pages(ctx, req, a.ListWorkers, (*flexiqv1.ListWorkersResponse).GetWorkers)
}

// Explain says what holds a job, a would-be call or the namespace back. The job
// is NOT_FOUND when the namespace has none of that id.
func (a Admin) Explain(ctx context.Context, req *flexiqv1.ExplainRequest) (*flexiqv1.ExplainResponse, error) {
	return read[flexiqv1.ExplainResponse](ctx, a.c, "Explain", req)
}

// GetDeadLetter reads one dead job with its payload.
func (a Admin) GetDeadLetter(ctx context.Context, id string) (*flexiqv1.Job, error) {
	res, err := read[flexiqv1.GetDeadLetterResponse](ctx, a.c, "GetDeadLetter", &flexiqv1.GetDeadLetterRequest{Id: id})
	return res.GetDeadLetter(), err
}

// ListDeadLetters reads one page of dead jobs.
func (a Admin) ListDeadLetters(ctx context.Context, req *flexiqv1.ListDeadLettersRequest) (*flexiqv1.ListDeadLettersResponse, error) {
	return read[flexiqv1.ListDeadLettersResponse](ctx, a.c, "ListDeadLetters", req)
}

// DeadLetters reads dead jobs page after page. An error ends the sequence.
func (a Admin) DeadLetters(ctx context.Context, req *flexiqv1.ListDeadLettersRequest) iter.Seq2[*flexiqv1.Job, error] {
	return pages(ctx, req, a.ListDeadLetters, (*flexiqv1.ListDeadLettersResponse).GetDeadLetters)
}

// ListAudit reads one page of the audit trail.
func (a Admin) ListAudit(ctx context.Context, req *flexiqv1.ListAuditRequest) (*flexiqv1.ListAuditResponse, error) {
	return read[flexiqv1.ListAuditResponse](ctx, a.c, "ListAudit", req)
}

// Audit reads the audit trail page after page, oldest first. An error ends the
// sequence.
func (a Admin) Audit(ctx context.Context, req *flexiqv1.ListAuditRequest) iter.Seq2[*flexiqv1.AuditRecord, error] {
	return pages(ctx, req, a.ListAudit, (*flexiqv1.ListAuditResponse).GetRecords)
}

// CreateToken makes a token. Its secret is in this answer and nowhere else.
func (a Admin) CreateToken(ctx context.Context, req *flexiqv1.CreateTokenRequest) (*flexiqv1.CreateTokenResponse, error) {
	return write[flexiqv1.CreateTokenResponse](ctx, a.c, "CreateToken", req)
}

// ListTokens reads one page of tokens, without their secrets.
func (a Admin) ListTokens(ctx context.Context, req *flexiqv1.ListTokensRequest) (*flexiqv1.ListTokensResponse, error) {
	return read[flexiqv1.ListTokensResponse](ctx, a.c, "ListTokens", req)
}

// Tokens reads tokens page after page. An error ends the sequence.
func (a Admin) Tokens(ctx context.Context, req *flexiqv1.ListTokensRequest) iter.Seq2[*flexiqv1.TokenInfo, error] {
	return pages(ctx, req, a.ListTokens, (*flexiqv1.ListTokensResponse).GetTokens)
}

// RevokeToken ends a token within two seconds. Revoking twice is no error.
func (a Admin) RevokeToken(ctx context.Context, req *flexiqv1.RevokeTokenRequest) (*flexiqv1.RevokeTokenResponse, error) {
	return write[flexiqv1.RevokeTokenResponse](ctx, a.c, "RevokeToken", req)
}

// ListNamespaces reads one page of all namespaces with their usage.
func (a Admin) ListNamespaces(ctx context.Context, req *flexiqv1.ListNamespacesRequest) (*flexiqv1.ListNamespacesResponse, error) {
	return read[flexiqv1.ListNamespacesResponse](ctx, a.c, "ListNamespaces", req)
}

// Namespaces reads all namespaces with their usage. An error ends the sequence.
func (a Admin) Namespaces(ctx context.Context, req *flexiqv1.ListNamespacesRequest) iter.Seq2[*flexiqv1.NamespaceUsage, error] {
	return pages(ctx, req, a.ListNamespaces, (*flexiqv1.ListNamespacesResponse).GetNamespaces)
}

// ExchangeToken makes a token of a namespace that lives for 5 minutes, out of
// a platform token.
func (a Admin) ExchangeToken(ctx context.Context, ns string) (*flexiqv1.ExchangeTokenResponse, error) {
	return write[flexiqv1.ExchangeTokenResponse](ctx, a.c, "ExchangeToken", &flexiqv1.ExchangeTokenRequest{Namespace: ns})
}

// DeleteNamespace deletes a namespace for good, as far as one call's time
// allows; call it again while More.
func (a Admin) DeleteNamespace(ctx context.Context, ns string) (*flexiqv1.DeleteNamespaceResponse, error) {
	return write[flexiqv1.DeleteNamespaceResponse](ctx, a.c, "DeleteNamespace", &flexiqv1.DeleteNamespaceRequest{Namespace: ns})
}

// GetSetting reads one setting.
func (a Admin) GetSetting(ctx context.Context, key string) (*flexiqv1.GetSettingResponse, error) {
	return read[flexiqv1.GetSettingResponse](ctx, a.c, "GetSetting", &flexiqv1.GetSettingRequest{Key: key})
}

// ListSettings reads one page of settings.
func (a Admin) ListSettings(ctx context.Context, req *flexiqv1.ListSettingsRequest) (*flexiqv1.ListSettingsResponse, error) {
	return read[flexiqv1.ListSettingsResponse](ctx, a.c, "ListSettings", req)
}

// Settings reads settings page after page. An error ends the sequence.
func (a Admin) Settings(ctx context.Context, req *flexiqv1.ListSettingsRequest) iter.Seq2[*flexiqv1.Setting, error] {
	return pages(ctx, req, a.ListSettings, (*flexiqv1.ListSettingsResponse).GetSettings)
}

// PutSetting writes one setting.
func (a Admin) PutSetting(ctx context.Context, key, value string) (*flexiqv1.PutSettingResponse, error) {
	return write[flexiqv1.PutSettingResponse](ctx, a.c, "PutSetting", &flexiqv1.PutSettingRequest{Key: key, Value: value})
}

// DeleteSetting removes one setting.
func (a Admin) DeleteSetting(ctx context.Context, key string) error {
	_, err := write[flexiqv1.DeleteSettingResponse](ctx, a.c, "DeleteSetting", &flexiqv1.DeleteSettingRequest{Key: key})
	return err
}

// PutSchedule creates or replaces a schedule.
func (a Admin) PutSchedule(ctx context.Context, req *flexiqv1.PutScheduleRequest) (*flexiqv1.Schedule, error) {
	res, err := write[flexiqv1.PutScheduleResponse](ctx, a.c, "PutSchedule", req)
	return res.GetSchedule(), err
}

// DeleteSchedule removes a schedule. NOT_FOUND when there is none.
func (a Admin) DeleteSchedule(ctx context.Context, name string) error {
	_, err := write[flexiqv1.DeleteScheduleResponse](ctx, a.c, "DeleteSchedule", &flexiqv1.DeleteScheduleRequest{Name: name})
	return err
}

// PauseSchedule stops a schedule until it is resumed.
func (a Admin) PauseSchedule(ctx context.Context, name string) (*flexiqv1.Schedule, error) {
	res, err := write[flexiqv1.PauseScheduleResponse](ctx, a.c, "PauseSchedule", &flexiqv1.PauseScheduleRequest{Name: name})
	return res.GetSchedule(), err
}

// ResumeSchedule lets a schedule go on with its next slot.
func (a Admin) ResumeSchedule(ctx context.Context, name string) (*flexiqv1.Schedule, error) {
	res, err := write[flexiqv1.ResumeScheduleResponse](ctx, a.c, "ResumeSchedule", &flexiqv1.ResumeScheduleRequest{Name: name})
	return res.GetSchedule(), err
}

// RunSchedule enqueues a schedule's job now, beside its slots.
func (a Admin) RunSchedule(ctx context.Context, name string) (*flexiqv1.EnqueueResult, error) {
	res, err := write[flexiqv1.RunScheduleResponse](ctx, a.c, "RunSchedule", &flexiqv1.RunScheduleRequest{Name: name})
	return res.GetResult(), err
}

// ListSchedules reads one page of schedules.
func (a Admin) ListSchedules(ctx context.Context, req *flexiqv1.ListSchedulesRequest) (*flexiqv1.ListSchedulesResponse, error) {
	return read[flexiqv1.ListSchedulesResponse](ctx, a.c, "ListSchedules", req)
}

// PutTrigger creates or replaces a trigger; it is in force within two seconds.
func (a Admin) PutTrigger(ctx context.Context, req *flexiqv1.PutTriggerRequest) (*flexiqv1.Trigger, error) {
	res, err := write[flexiqv1.PutTriggerResponse](ctx, a.c, "PutTrigger", req)
	return res.GetTrigger(), err
}

// DeleteTrigger removes a trigger. NOT_FOUND when there is none.
func (a Admin) DeleteTrigger(ctx context.Context, name string) error {
	_, err := write[flexiqv1.DeleteTriggerResponse](ctx, a.c, "DeleteTrigger", &flexiqv1.DeleteTriggerRequest{Name: name})
	return err
}

// ListTriggers reads one page of triggers, without their secrets.
func (a Admin) ListTriggers(ctx context.Context, req *flexiqv1.ListTriggersRequest) (*flexiqv1.ListTriggersResponse, error) {
	return read[flexiqv1.ListTriggersResponse](ctx, a.c, "ListTriggers", req)
}

// SetOverride sets caps, a pause and defaults for a queue or a task, in the place
// of what was set before: what is left out is lifted.
func (a Admin) SetOverride(ctx context.Context, req *flexiqv1.SetOverrideRequest) (*flexiqv1.Override, error) {
	res, err := write[flexiqv1.SetOverrideResponse](ctx, a.c, "SetOverride", req)
	return res.GetOverride(), err
}

// ClearOverride removes what is set for a queue or a task. NOT_FOUND when nothing is.
func (a Admin) ClearOverride(ctx context.Context, req *flexiqv1.ClearOverrideRequest) error {
	_, err := write[flexiqv1.ClearOverrideResponse](ctx, a.c, "ClearOverride", req)
	return err
}

// ListOverrides reads one page of overrides.
func (a Admin) ListOverrides(ctx context.Context, req *flexiqv1.ListOverridesRequest) (*flexiqv1.ListOverridesResponse, error) {
	return read[flexiqv1.ListOverridesResponse](ctx, a.c, "ListOverrides", req)
}

// Overrides reads overrides page after page. An error ends the sequence.
func (a Admin) Overrides(ctx context.Context, req *flexiqv1.ListOverridesRequest) iter.Seq2[*flexiqv1.Override, error] {
	return pages(ctx, req, a.ListOverrides, (*flexiqv1.ListOverridesResponse).GetOverrides)
}
