package commands

import (
	"reflect"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/demo"
	"github.com/kshare/kshare/internal/doctor"
	"github.com/kshare/kshare/sandbox"
)

// Document is a kind of JSON that kshare writes. Its schema is made from the
// types, by docs/gen.
type Document struct {
	Kind    string
	Version int
	Items   reflect.Type // of each item; nil when the kind has no items
	Data    reflect.Type // nil when it has no data
	// Line is set for an object on stderr with -o json, which has no envelope:
	// these are the keys beside its kind.
	Line reflect.Type
}

// Documents returns all kinds, sorted, those of lines on stderr last. The slice is
// the caller's.
func Documents() []Document {
	return []Document{
		{Kind: "ack", Version: 1, Items: reflect.TypeFor[ackItem](), Data: reflect.TypeFor[ackResult]()},
		{Kind: "config.change", Version: 1, Data: reflect.TypeFor[contextChange]()},
		{Kind: "config.check", Version: 1, Items: reflect.TypeFor[configFinding](), Data: reflect.TypeFor[contextsData]()},
		{Kind: "config.contexts", Version: 1, Items: reflect.TypeFor[contextRow](), Data: reflect.TypeFor[contextsData]()},
		{Kind: "config.view", Version: 1, Items: reflect.TypeFor[configSetting](), Data: reflect.TypeFor[configViewData]()},
		{Kind: "ctp", Version: 1, Data: reflect.TypeFor[ctpResult]()},
		{Kind: "ctp.preflight", Version: 1, Items: reflect.TypeFor[ctp.Check]()},
		{Kind: "demo", Version: 1, Items: reflect.TypeFor[demo.Step]()},
		{Kind: "doctor", Version: 1, Items: reflect.TypeFor[doctor.Finding]()},
		{Kind: "drain", Version: 1, Items: reflect.TypeFor[pendingItem](), Data: reflect.TypeFor[drain.Result]()},
		{Kind: "feature.dependencies", Version: 1, Items: reflect.TypeFor[feature.Dependency]()},
		{Kind: "feature.describe", Version: 1, Items: reflect.TypeFor[feature.Feature](), Data: reflect.TypeFor[feature.Report]()},
		{Kind: "feature.downgrade", Version: 1, Items: reflect.TypeFor[feature.Item](), Data: reflect.TypeFor[feature.Result]()},
		{Kind: "feature.mapping", Version: 1, Items: reflect.TypeFor[feature.Release](), Data: reflect.TypeFor[featureMapping]()},
		{Kind: "feature.matrix", Version: 1, Items: reflect.TypeFor[feature.MatrixCell](), Data: reflect.TypeFor[feature.Matrix]()},
		{Kind: "feature.plan", Version: 1, Items: reflect.TypeFor[feature.Step](), Data: reflect.TypeFor[featurePlanData]()},
		{Kind: "feature.upgrade", Version: 1, Items: reflect.TypeFor[feature.Item](), Data: reflect.TypeFor[feature.Result]()},
		{Kind: "inspect.group", Version: 1, Items: reflect.TypeFor[inspect.GroupRow](), Data: reflect.TypeFor[inspect.GroupReport]()},
		{Kind: "inspect.hanging", Version: 1, Items: reflect.TypeFor[hangingItem](), Data: reflect.TypeFor[inspect.HangingReport]()},
		{Kind: "inspect.metrics", Version: 1, Items: reflect.TypeFor[inspect.MetricRow](), Data: reflect.TypeFor[inspect.MetricsReport]()},
		{Kind: "inspect.partition", Version: 1, Items: reflect.TypeFor[inspect.RangeRow](), Data: reflect.TypeFor[inspect.PartitionReport]()},
		{Kind: "inspect.pending", Version: 1, Items: reflect.TypeFor[pendingItem](), Data: reflect.TypeFor[inspect.PendingReport]()},
		{Kind: "inspect.pending.summary", Version: 1, Data: reflect.TypeFor[inspect.PendingReport]()},
		{Kind: "inspect.txn", Version: 1, Items: reflect.TypeFor[inspect.TxnRow](), Data: reflect.TypeFor[inspect.TxnReport]()},
		{Kind: "sandbox.fault", Version: 1, Items: reflect.TypeFor[sandbox.Fault]()},
		{Kind: "sandbox.run", Version: 1, Data: reflect.TypeFor[sandboxInfo]()},
		{Kind: "txn.abort", Version: 1, Items: reflect.TypeFor[txnAbort](), Data: reflect.TypeFor[txnAbortResult]()},
		{Kind: "txn.describe", Version: 1, Items: reflect.TypeFor[txnEnd](), Data: reflect.TypeFor[txnEndResult]()},
		{Kind: "txn.fence", Version: 1, Items: reflect.TypeFor[txnFence](), Data: reflect.TypeFor[txnFenceResult]()},
		{Kind: "txn.prepare", Version: 1, Items: reflect.TypeFor[ackItem](), Data: reflect.TypeFor[ackResult]()},
		{Kind: "txn.resume", Version: 1, Items: reflect.TypeFor[txnEnd](), Data: reflect.TypeFor[txnEndResult]()},
		{Kind: "version", Version: 1, Data: reflect.TypeFor[versionInfo]()},

		{Kind: "error", Version: 1, Line: reflect.TypeFor[errorLine]()},
		{Kind: "hint", Version: 1, Line: reflect.TypeFor[noteLine]()},
		{Kind: "notice", Version: 1, Line: reflect.TypeFor[noteLine]()},
		{Kind: "progress", Version: 1, Line: reflect.TypeFor[noteLine]()},
		{Kind: "warning", Version: 1, Line: reflect.TypeFor[noteLine]()},
	}
}
