package kafkatest_test

import (
	"errors"
	"testing"

	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Upgrade types of UpdateFeatures.
const (
	upgrade         int8 = 1
	safeDowngrade   int8 = 2
	unsafeDowngrade int8 = 3
)

type update struct {
	feature string
	level   int16
	typ     int8
}

// updateError is what the controller answers, with its own text.
type updateError struct {
	err  error
	text string
}

func (e *updateError) Error() string { return e.err.Error() + ": " + e.text }

func (e *updateError) Unwrap() error { return e.err }

func updateFeaturesRequest(updates ...update) *kmsg.UpdateFeaturesRequest {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	for _, u := range updates {
		f := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		f.Feature, f.MaxVersionLevel, f.UpgradeType = u.feature, u.level, u.typ
		req.FeatureUpdates = append(req.FeatureUpdates, f)
	}
	return req
}

func updateFeatures(t *testing.T, cl *kgo.Client, updates ...update) error {
	t.Helper()
	return sendUpdate(t, cl, updateFeaturesRequest(updates...))
}

func sendUpdate(t *testing.T, cl *kgo.Client, req *kmsg.UpdateFeaturesRequest) error {
	t.Helper()
	resp, err := req.RequestWith(testContext(t), cl)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Version != 2 || len(resp.Results) > 0 {
		t.Errorf("UpdateFeatures v%d, %d results; want v2, which has none", resp.Version, len(resp.Results))
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		e := &updateError{err: err}
		if resp.ErrorMessage != nil {
			e.text = *resp.ErrorMessage
		}
		return e
	}
	return nil
}

// wantInvalidUpdate wants the controller to refuse with this text.
func wantInvalidUpdate(t *testing.T, what any, got error, text string) {
	t.Helper()
	text = "The update failed for all features since the following feature had an error: " + text
	e, ok := errors.AsType[*updateError](got)
	if !ok || !errors.Is(got, kerr.InvalidUpdateVersion) || e.text != text {
		t.Errorf("UpdateFeatures %v: %v\nwant INVALID_UPDATE_VERSION: %s", what, got, text)
	}
}

// What the controller allows and says, which kshare feature is built on.
func TestUpdateFeatures(t *testing.T) {
	// As levels are set when the table begins, with transaction.version 1.
	type refusal struct {
		updates []update
		text    string // "" when it is allowed
	}
	common := []refusal{
		{[]update{}, ""},
		{[]update{{"transaction.version", 1, upgrade}}, ""},
		{[]update{{"transaction.version", 1, safeDowngrade}}, ""},
		{[]update{{"transaction.version", 1, unsafeDowngrade}}, ""},
		{
			[]update{{"transaction.version", 0, upgrade}},
			"Invalid update version 0 for feature transaction.version. Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
		},
		{
			[]update{{"transaction.version", 2, safeDowngrade}},
			"Invalid update version 2 for feature transaction.version. Can't downgrade to a newer version.",
		},
		{
			[]update{{"transaction.version", 2, unsafeDowngrade}},
			"Invalid update version 2 for feature transaction.version. Can't downgrade to a newer version.",
		},
		{
			[]update{{"transaction.version", 99, upgrade}},
			"Invalid update version 99 for feature transaction.version. Local controller 1 only supports versions 0-2",
		},
		{
			[]update{{"transaction.version", -1, safeDowngrade}},
			"Invalid update version -1 for feature transaction.version. A feature version cannot be less than 0.",
		},
		{
			[]update{{"transaction.version", 2, 0}},
			"Invalid update version 2 for feature transaction.version. The controller does not support the given upgrade type.",
		},
		{
			[]update{{"no.such.version", 1, upgrade}},
			"Invalid update version 1 for feature no.such.version. Local controller 1 does not support this feature.",
		},
		{
			[]update{{"no.such.version", 0, safeDowngrade}},
			"Invalid update version 0 for feature no.such.version. Feature no.such.version not found.",
		},
		{ // nothing of it takes effect
			[]update{{"transaction.version", 2, upgrade}, {"no.such.version", 1, upgrade}},
			"Invalid update version 1 for feature no.such.version. Local controller 1 does not support this feature.",
		},
	}
	for version, own := range map[string][]refusal{
		kafkatest.Kafka40: {
			{
				[]update{{"share.version", 1, upgrade}},
				"Invalid update version 1 for feature share.version. Local controller 1 does not support this feature.",
			},
			{
				[]update{{"metadata.version", 7, unsafeDowngrade}},
				"Invalid metadata.version 7. Unsafe metadata downgrade is not supported in this version.",
			},
		},
		kafkatest.Kafka42: {
			{
				[]update{{"share.version", 2, upgrade}},
				"Invalid update version 2 for feature share.version. Local controller 1 only supports versions 0-1",
			},
			{[]update{{"share.version", 0, safeDowngrade}}, ""},
			{[]update{{"share.version", 1, upgrade}}, ""},
			{
				[]update{{"metadata.version", 7, safeDowngrade}},
				"Unsupported metadata.version downgrade from 29 to 7. Refusing to perform the requested downgrade because it might delete metadata information.",
			},
		},
		kafkatest.Kafka44: {
			{
				[]update{{"share.version", 3, upgrade}},
				"Invalid update version 3 for feature share.version. Local controller 1 only supports versions 0-2",
			},
			{[]update{{"share.version", 0, safeDowngrade}}, ""},
			{[]update{{"share.version", 2, upgrade}}, ""}, // over level 1
			{[]update{{"share.version", 1, safeDowngrade}}, ""},
			{
				[]update{{"metadata.version", 7, unsafeDowngrade}},
				"Unsupported metadata.version downgrade from 33 to 7. Unsafe metadata downgrade is not supported in this version.",
			},
			{
				[]update{{"kraft.version", 0, safeDowngrade}},
				"Invalid update version 0 for feature kraft.version. Can't downgrade the version of this feature.",
			},
		},
	} {
		t.Run(version, func(t *testing.T) {
			k := kafkatest.Start(t, kafkatest.Config{Version: version, Features: map[string]int16{"transaction.version": 1}})
			cl := k.Client(t)
			for _, tt := range append(common, own...) {
				err := updateFeatures(t, cl, tt.updates...)
				if tt.text != "" {
					wantInvalidUpdate(t, tt.updates, err, tt.text)
				} else if err != nil {
					t.Errorf("UpdateFeatures %v: %v", tt.updates, err)
				}
			}
			req := updateFeaturesRequest(update{"transaction.version", 2, upgrade})
			req.ValidateOnly = true
			if err := sendUpdate(t, cl, req); err != nil {
				t.Errorf("UpdateFeatures, validate only: %v", err)
			}
			if got := features(apiVersions(t, cl.Broker(1)))["transaction.version"].finalized; got != 1 {
				t.Fatalf("transaction.version is %d after refusals and a validation, want 1", got)
			}
			if err := updateFeatures(t, cl, update{"transaction.version", 2, upgrade}); err != nil {
				t.Fatal(err)
			}
			for ctx := testContext(t); features(apiVersions(t, cl.Broker(1)))["transaction.version"].finalized != 2; {
				if ctx.Err() != nil {
					t.Fatal("transaction.version does not become 2")
				}
			}
		})
	}
}
