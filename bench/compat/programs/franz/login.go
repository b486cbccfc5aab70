package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type credentials struct {
	Bootstrap, CA, How, User, Password, Certificate, Key, Token string
}

func (c credentials) options() ([]kgo.Opt, error) {
	authority, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, err
	}
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(authority)
	config := &tls.Config{RootCAs: trust}
	options := []kgo.Opt{kgo.SeedBrokers(c.Bootstrap)}
	switch c.How {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: c.User, Pass: c.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: c.User, Pass: c.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: c.User, Pass: c.Password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: c.Token}.AsMechanism()))
	case "certificate":
		pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return append(options, kgo.DialTLSConfig(config)), nil
}

// login produces one message and reads the topic up to it, over TLS.
func login(arguments map[string]string) error {
	text, err := os.ReadFile(arguments["file"])
	if err != nil {
		return err
	}
	var found credentials
	if err := json.Unmarshal(text, &found); err != nil {
		return err
	}
	options, err := found.options()
	if err != nil {
		return err
	}
	topic := arguments["topic"]
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	from := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	client, err := kgo.NewClient(append(options, kgo.ConsumePartitions(from))...)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	record := &kgo.Record{Topic: topic, Value: []byte(arguments["text"])}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return err
	}
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		isThere := false
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Printf("%s\n", record.Value)
			isThere = isThere || string(record.Value) == arguments["text"]
		})
		if isThere {
			return nil
		}
	}
}
