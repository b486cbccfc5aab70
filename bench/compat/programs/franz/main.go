// franz-go against one node: franz create|produce|read|group BOOTSTRAP TOPIC [CODEC|COUNT], where lines to produce come on
// standard input and what is read goes to standard output, one value a line; or franz member|work|read-all|login --OPTION VALUE …
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func create(ctx context.Context, client *kgo.Client, topic string) error {
	_, err := kadm.NewClient(client).CreateTopic(ctx, 1, 1, nil, topic)
	return err
}

func produce(ctx context.Context, client *kgo.Client, topic string) error {
	lines := bufio.NewScanner(os.Stdin)
	var records []*kgo.Record
	for lines.Scan() {
		records = append(records, &kgo.Record{Topic: topic, Value: []byte(lines.Text())})
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

func read(ctx context.Context, client *kgo.Client, count int) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for count > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if count > 0 {
				fmt.Fprintf(out, "%s\n", record.Value)
			}
			count--
		})
	}
	return nil
}

func run() error {
	programs := map[string]func(map[string]string) error{"member": member, "work": work, "read-all": readAll, "login": login}
	if program, isThere := programs[os.Args[1]]; isThere {
		return program(parse(os.Args[2:]))
	}
	verb, bootstrap, topic, extra := os.Args[1], os.Args[2], os.Args[3], append(os.Args, "")[4]
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ClientID("compat")}
	switch verb {
	case "produce": // franz-go is idempotent by default
		options = append(options, kgo.ProducerBatchCompression(codecs[extra]), kgo.RequiredAcks(kgo.AllISRAcks()))
	case "read":
		from := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
		options = append(options, kgo.ConsumePartitions(from))
	case "group":
		options = append(options, kgo.ConsumerGroup("compat-"+topic), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	switch verb {
	case "create":
		return create(ctx, client, topic)
	case "produce":
		return produce(ctx, client, topic)
	default:
		count, err := strconv.Atoi(extra)
		if err != nil {
			return err
		}
		return read(ctx, client, count)
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
