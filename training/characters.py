"""Which characters the small model reads, and words to make pages of."""

from __future__ import annotations

import string

from training.prompts import NO_TEXT

LATIN = string.digits + string.ascii_letters + string.punctuation + " "
SIGNS = "€£¥°"

FREQUENT = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多"
    "经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此已工使情明性"
    "知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次"
    "度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结反受目太量再感建"
    "务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放强即像难且权思王象完设式色路"
    "记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运六七八九百千零半左右春夏秋冬早晚午夜红黄蓝绿"
)
"""The most frequent characters of written Chinese, numbers, seasons and colours."""

OF_FORMS = (
    "发票号码金额合计税率单价数量日期姓名地址电话公司有限责任编号备注项目商店收银付款现卡客户餐饮元角整订购货物服务费用总共找零欢迎光临"
    "谢惠顾京沪广州深圳杭成都武汉街路室楼层部经理签字章批准审核银账余支出入序列型规格称包装箱件斤克米升折扣优会积换退保修邮箱网址版权"
    "图片表页章节第题目录附言摘要关键词作者机构时间状态完已未待处理通知请按时提交谢阅读者注意事项"
)
PUNCTUATION = "，。、：；！？（）《》“”"
_WORDS = (
    "the of and to in is for that with on as are this by be at from or an it not have was all can will one "
    "has which their been more when there if out so up about into than them only other new some could time "
    "these two may then do first any my now such like our over man me even most made after also did many "
    "before must through back years where much your way well down should because each just those people how "
    "too little state good very make world still own see men work long get here between both life being under "
    "never day same another know while last might us great old year off come since against go came right used "
    "take three states himself few house use during without again place around however home small found "
    "thought went say part once general high upon school every united left number course war until always "
    "away something fact though water less public put almost hand enough far took head yet government system "
    "better set told nothing night end why called going look find asked later knew point next program city "
    "business give group toward young days let room president side social given present several order "
    "national possible rather second face per among form important often things looked early white case john "
    "become large big need four within felt along children saw best church ever least power development light "
    "thing seemed family interest want members mind country area others done turned open service certain "
    "kind problem began different door thus help sense means whole matter invoice receipt total amount "
    "quantity price discount customer address phone account payment balance bank card cash change tax rate "
    "item product office street north south east west january february march april june july august september "
    "october november december monday tuesday wednesday thursday friday saturday sunday paper page table "
    "figure chapter section report letter contract delivery shipping warehouse station airport ticket flight "
    "hotel coffee bread milk sugar apple orange green yellow black queen quick brown jumps lazy zebra vexing "
    "wizard oxygen fjord"
)
WORDS = _WORDS.split()

_PHRASES = (
    "发票号码 金额合计 数量 单价 日期 姓名 地址 电话 公司名称 有限公司 北京市 上海市 广州市 深圳市 杭州市 "
    "成都市 武汉市 中国 人民 时间 工作 学生 老师 问题 发展 经济 社会 政府 国家 世界 技术 科学 文化 教育 "
    "生活 服务 管理 市场 银行 客户 订单 商品 价格 现金 找零 欢迎光临 谢谢惠顾 合同 保修 经理 签字 审核 批准 "
    "项目 规格 型号 备注 状态 已完成 未处理 通知 请按时提交 注意事项 图表 目录 摘要 关键词 作者 第一章 第二节 "
    "第三页 今年 明天 早上 晚上 春天 夏天 秋天 冬天 红色 黄色 蓝色 绿色 白色"
)
PHRASES = _PHRASES.split()

_KEYS = (
    "name date total amount tax number phone address city company customer order price quantity item invoice "
    "account bank card cash change discount balance rate code type status time email country due subtotal"
)
KEYS = _KEYS.split()

_CHINESE_KEYS = (
    "姓名 日期 合计 金额 税率 号码 电话 地址 城市 公司 客户 单价 数量 项目 编号 备注 状态 时间 型号 规格 "
    "银行 账号 现金 找零 经理 网址"
)
CHINESE_KEYS = _CHINESE_KEYS.split()

CHINESE = "".join(dict.fromkeys("".join((FREQUENT, OF_FORMS, *PHRASES, *CHINESE_KEYS, NO_TEXT))))
"""Every Chinese character that the model knows, once each."""

ALPHABET = LATIN + SIGNS + PUNCTUATION + CHINESE
