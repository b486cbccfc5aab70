package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	abortEach          = 5
	transactionTimeout = 30 * time.Second
	pause              = 10 * time.Millisecond // in each state of a transaction, so that a kill meets all of them
)

// work consumes, transforms and produces in transactions until it is killed. Every fifth one is aborted; the session
// then goes back to what is committed, and the same messages come again.
func work(wanted map[string]string) error {
	log, err := openDiary(wanted["diary"])
	if err != nil {
		return err
	}
	if err := endPredecessor(wanted); err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(wanted["bootstrap"], ",")...),
		kgo.TransactionalID(wanted["id"]),
		kgo.TransactionTimeout(transactionTimeout),
		kgo.ConsumerGroup(wanted["group"]),
		kgo.ConsumeTopics(wanted["input"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.FetchMaxWait(200*time.Millisecond),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatEach),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for number := 1; ; {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		fetches := session.PollRecords(ctx, messagesAtOnce)
		cancel()
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := transact(session, fetches, wanted["output"], number%abortEach != 0, number, log); err != nil {
			return err
		}
		number++
	}
}

// endPredecessor asks for the producer id, which aborts what a killed worker left open. A session would ask for it with
// its first message only, and gets none while the offsets of its group are pending.
func endPredecessor(wanted map[string]string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(wanted["bootstrap"], ",")...),
		kgo.TransactionalID(wanted["id"]),
		kgo.TransactionTimeout(transactionTimeout),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), transactionTimeout)
	defer cancel()
	for {
		_, _, err := client.ProducerID(ctx)
		if !errors.Is(err, kerr.ConcurrentTransactions) { // it is still being aborted
			return err
		}
		time.Sleep(pause)
	}
}

func transact(
	session *kgo.GroupTransactSession, fetches kgo.Fetches, output string, isCommit bool, number int, log *diary,
) error {
	if err := session.Begin(); err != nil {
		return err
	}
	var failed kgo.FirstErrPromise
	fetches.EachRecord(func(record *kgo.Record) {
		result := &kgo.Record{Topic: output, Partition: record.Partition, Value: []byte("done:" + string(record.Value))}
		session.Produce(context.Background(), result, failed.Promise())
	})
	if err := session.Client().Flush(context.Background()); err != nil {
		return err
	}
	if err := failed.Err(); err != nil {
		return err
	}
	log.write("sent", fetches.NumRecords())
	time.Sleep(pause)
	isCommitted, err := session.End(context.Background(), kgo.TransactionEndTry(isCommit))
	if err != nil {
		return err
	}
	if isCommitted {
		log.write("committed", number)
	} else {
		log.write("aborted", number)
	}
	time.Sleep(pause)
	return nil
}

// readAll prints every value until each partition has said "end".
func readAll(wanted map[string]string) error {
	isolation := kgo.ReadCommitted()
	if wanted["isolation"] == "uncommitted" {
		isolation = kgo.ReadUncommitted()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(wanted["bootstrap"], ",")...),
		kgo.ConsumeTopics(wanted["topic"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(isolation),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	topics, err := kadm.NewClient(client).ListTopics(ctx, wanted["topic"])
	if err != nil {
		return err
	}
	left := len(topics[wanted["topic"]].Partitions)
	if left == 0 {
		return errors.New("the topic has no partitions")
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if string(record.Value) == "end" {
				left--
			} else {
				fmt.Fprintf(out, "%s\n", record.Value)
			}
		})
	}
	return nil
}
