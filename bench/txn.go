//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"golang.org/x/sync/errgroup"
)

const (
	openTxns = 1000
	// describedTxns is how many of them Kafka's tool describes: it takes a process
	// for each.
	describedTxns = 10
)

// compareTxn lists and describes the open transactions of a real Kafka, with
// "kshare inspect txn" and with Kafka's own tool, each as a whole process.
func compareTxn(ctx context.Context, _ int64, rounds int) (err error) {
	if err := kafkatest.Available(); err != nil {
		fmt.Printf("txn         left out: %v\n", err)
		return nil
	}
	k, end, err := kafkatest.Run(ctx, kafkatest.Config{Version: kafkatest.Kafka44})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := openTransactions(ctx, k, openTxns); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kshare-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin := filepath.Join(dir, "kshare")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/kshare").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}

	var kshare, list, describe []float64
	for range rounds {
		s, err := timed(func() error { return inspectTxn(ctx, bin, k) })
		if err != nil {
			return err
		}
		kshare = append(kshare, s)
		if s, err = timed(func() error { return toolList(ctx, k) }); err != nil {
			return err
		}
		list = append(list, s)
	}
	for i := range describedTxns {
		s, err := timed(func() error { return toolDescribe(ctx, k, txnID(i)) })
		if err != nil {
			return err
		}
		describe = append(describe, s)
	}
	one, tool, each := median(kshare), median(list), median(describe)
	all := tool + openTxns*each
	fmt.Printf("txn         Kafka %s in another process, %d open transactions, whole processes, %d rounds\n", k.Version(), openTxns, rounds)
	fmt.Printf("            kshare inspect txn, listed and described      %8.3f s (%s)\n", one, spread(kshare))
	fmt.Printf("            kafka-transactions.sh list                    %8.3f s (%s)   ratio %.3f\n", tool, spread(list), one/tool)
	fmt.Printf("            and describe of each, from %d of them at %.3f s %8.0f s   ratio %.6f\n", describedTxns, each, all, one/all)
	return nil
}

func timed(do func() error) (float64, error) {
	start := time.Now()
	err := do()
	return time.Since(start).Seconds(), err
}

func txnID(i int) string { return fmt.Sprintf("bench-%04d", i) }

// inspectTxn lists and describes with kshare.
func inspectTxn(ctx context.Context, bin string, k *kafkatest.Cluster) error {
	out, err := exec.CommandContext(ctx, bin, "inspect", "txn", "--all", "--state", "Ongoing", "-o", "json", "-b", strings.Join(k.Bootstrap(), ",")).Output()
	if err != nil {
		return fmt.Errorf("kshare inspect txn: %w", err)
	}
	var doc struct {
		Items []struct {
			TopicPartitions []json.RawMessage `json:"topic_partitions"`
		}
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return err
	}
	if len(doc.Items) != openTxns || len(doc.Items[0].TopicPartitions) != 1 {
		return fmt.Errorf("kshare lists %d transactions, the first with %v, want %d described", len(doc.Items), doc.Items[0], openTxns)
	}
	return nil
}

func toolList(ctx context.Context, k *kafkatest.Cluster) error {
	out, err := k.Tool(ctx, kafkatest.TransactionTool, "list")
	if n := strings.Count(out, "Ongoing"); err == nil && n != openTxns {
		return fmt.Errorf("the tool of Kafka lists %d transactions, want %d", n, openTxns)
	}
	return err
}

func toolDescribe(ctx context.Context, k *kafkatest.Cluster, id string) error {
	out, err := k.Tool(ctx, kafkatest.TransactionTool, "describe", "--transactional-id", id)
	if err == nil && !strings.Contains(out, "Ongoing") {
		return fmt.Errorf("the tool of Kafka says of %s: %s", id, out)
	}
	return err
}

// openTransactions leaves n transactions open, each with one partition.
func openTransactions(ctx context.Context, k *kafkatest.Cluster, n int) error {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.AddPartitionsToTxn), 3) // later ones are for brokers
	cl, err := kgo.NewClient(append(k.Opts(kafkatest.Admin, kafkatest.Plain), kgo.MaxVersions(versions))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := createTopics(ctx, strings.Join(k.Bootstrap(), ","), "out"); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error { return openTransaction(ctx, cl, txnID(i)) })
	}
	return g.Wait()
}

func openTransaction(ctx context.Context, cl *kgo.Client, id string) error {
	init := kmsg.NewPtrInitProducerIDRequest()
	init.TransactionalID, init.TransactionTimeoutMillis = &id, 900_000
	producer, err := init.RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(producer.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = id, producer.ProducerID, producer.ProducerEpoch
	t := kmsg.NewAddPartitionsToTxnRequestTopic()
	t.Topic, t.Partitions = "out", []int32{0}
	add.Topics = append(add.Topics, t)
	added, err := add.RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(added.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	return nil
}
