package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	messagesAtOnce = 20
	sessionTimeout = 6 * time.Second
	heartbeatEach  = 500 * time.Millisecond
)

func numbers(partitions map[string][]int32) []any {
	var all []int
	for _, some := range partitions {
		for _, each := range some {
			all = append(all, int(each))
		}
	}
	sort.Ints(all)
	words := make([]any, 0, len(all))
	for _, each := range all {
		words = append(words, each)
	}
	return words
}

func balancer(strategy string) kgo.GroupBalancer {
	switch strategy {
	case "range":
		return kgo.RangeBalancer()
	case "consumer": // with the new protocol it names the broker's assignor: uniform
		return kgo.StickyBalancer()
	default:
		return kgo.CooperativeStickyBalancer()
	}
}

// member is one member of a group: it reads, writes down what it read, and only then commits. SIGTERM makes it leave.
func member(wanted map[string]string) error {
	log, err := openDiary(wanted["diary"])
	if err != nil {
		return err
	}
	ctx := context.Background()
	if wanted["strategy"] == "consumer" {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true) //nolint:staticcheck // franz-go's own key
	}
	told := func(kind string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			log.write(append([]any{kind}, numbers(partitions)...)...)
		}
	}
	client, err := kgo.NewClient(
		kgo.WithContext(ctx),
		kgo.SeedBrokers(strings.Split(wanted["bootstrap"], ",")...),
		kgo.ConsumerGroup(wanted["group"]),
		kgo.ConsumeTopics(wanted["topic"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(balancer(wanted["strategy"])),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatEach),
		kgo.FetchMaxWait(200*time.Millisecond),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(told("assigned")),
		kgo.OnPartitionsRevoked(told("revoked")),
		kgo.OnPartitionsLost(told("revoked")),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	)
	if err != nil {
		return err
	}
	stopping, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for stopping.Err() == nil {
		handle(client, log)
	}
	client.Close() // leaves the group
	return nil
}

func handle(client *kgo.Client, log *diary) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	fetches := client.PollRecords(ctx, messagesAtOnce)
	defer client.AllowRebalance()
	ends := map[string]map[int32]kgo.EpochOffset{}
	fetches.EachRecord(func(record *kgo.Record) {
		log.write("got", record.Partition, record.Offset, string(record.Value))
		if ends[record.Topic] == nil {
			ends[record.Topic] = map[int32]kgo.EpochOffset{}
		}
		ends[record.Topic][record.Partition] = kgo.EpochOffset{Epoch: record.LeaderEpoch, Offset: record.Offset + 1}
	})
	if len(ends) == 0 {
		return
	}
	client.CommitOffsetsSync(context.Background(), ends, func(
		_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error,
	) {
		if err != nil { // the group moved on; what was not committed comes again
			fmt.Fprintln(os.Stderr, "commit:", err)
			return
		}
		for _, topic := range response.Topics {
			for _, each := range topic.Partitions {
				if kerr.ErrorForCode(each.ErrorCode) == nil {
					log.write("committed", each.Partition, ends[topic.Topic][each.Partition].Offset)
				}
			}
		}
	})
}
