// Package kafkatest runs Apache Kafka for a test: brokers and KRaft controllers
// in Java processes on the loopback interface, of any release that Maven serves,
// from the artefacts that the Kafka project publishes. Nothing is faked, so what
// it answers is what an operator's cluster answers.
//
//	func TestMain(m *testing.M) { kafkatest.Main(m) }
//
//	func TestFeatures(t *testing.T) {
//		k := kafkatest.Shared(t, kafkatest.Config{Version: kafkatest.Kafka44})
//		cl := k.Client(t)
//		out, err := k.Tool(t.Context(), kafkatest.FeatureTool, "describe")
//		...
//	}
//
// [Shared] gives a cluster to all tests of a package that ask for the same one;
// [Start] gives one to a test that stops nodes or changes feature levels. Both
// skip the test where there is no Java or no Maven, but fail it in CI.
//
// The first use of a release on a machine downloads it, with Maven. What was
// found out is kept in kshare-kafkatest in the user's cache directory: the class
// path, and an archive of loaded classes that makes a JVM start several times as
// fast. No process outlives the test: on Linux the kernel kills them when the
// test's process dies, whatever it dies of.
package kafkatest
